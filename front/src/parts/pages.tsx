// Pages of a list. Always true: only one page's rows are in the document, and its address names it, so 100,000 rows are as light as 50.
import type { JSX } from "preact";
import type { Page } from "../api";
import { count, many } from "../format";
import { useKeys } from "../keys";
import { changed, go, usePlace } from "../route";

export const ROWS = 50;

// From each page's cursor to the one before it, as far as this visit came through them.
const before = new Map<string, string | null>();

export function Pages({ page, one, more }: { page: Page<unknown>; one: string; more?: string }): JSX.Element {
  const { query, key } = usePlace();
  const after = query.get("after");
  const known = before.get(`${key}?${after}`);
  const next = page.next === null ? null : (): void => {
    before.set(`${key}?${page.next}`, after);
    go(changed({ after: page.next }));
    window.scrollTo(0, 0);
  };
  const previous = after === null ? null : (): void => go(changed({ after: known ?? null }));
  useKeys({ n: () => next?.(), p: () => previous?.() });
  return (
    <div class="pages">
      <span role="status">
        {page.total === null ? many(page.rows.length, one, more) + " on this page" : many(page.total, one, more)}
        {page.took_ms !== undefined && <span class="took"> · {count(page.took_ms)} ms</span>}
      </span>
      {(next || previous) && (
        <span class="pages-buttons">
          <button type="button" disabled={!previous} onClick={() => previous?.()}>{after !== null && known === undefined ? "First" : "Previous"}</button>
          <button type="button" disabled={!next} onClick={() => next?.()}>Next</button>
        </span>
      )}
    </div>
  );
}
