// A text of any length, a page of it at a time: 5 MB in one line is no heavier than 20,000 characters.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ask } from "../api";
import type { Text, TextPage } from "../api";
import { embedded } from "../embedded";
import { count } from "../format";
import { Problem } from "../problem";
import { Trouble } from "./states";
import { Block } from "./text";

interface Props { text: Text; path: (from: number) => string; find: string | null; mono?: boolean }

export function Longer({ text, path, find, mono }: Props): JSX.Element {
  const [page, setPage] = useState<{ from: number; text: string; next: number | null; starts: number[] }>({
    from: 0, text: text.text, next: text.cut ? characters(text.text) : null, starts: [],
  });
  const [problem, setProblem] = useState<Problem | null>(null);
  const shown = page.from === 0 ? text.text : page.text;
  const turn = async (from: number, starts: number[]): Promise<void> => {
    try {
      const read = await ask<TextPage>(path(from));
      setPage({ from, text: read.text, next: read.next, starts });
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, String(error), null));
    }
  };
  const back = (): void => {
    const from = page.starts.at(-1) ?? 0;
    if (from === 0) setPage({ from: 0, text: text.text, next: characters(text.text), starts: [] });
    else void turn(from, page.starts.slice(0, -1));
  };
  return (
    <>
      <Block value={shown} find={find} mono={mono ?? false} />
      {problem && <Trouble problem={problem} />}
      {text.cut && embedded && <p class="note">The first {count(characters(text.text))} of {count(text.chars)} characters. The rest is not included in this report.</p>}
      {text.cut && !embedded && (
        <div class="longer">
          <span class="number">{count(page.from + 1)} – {count(page.from + characters(shown))} of {count(text.chars)} characters</span>
          <button type="button" disabled={page.from === 0} onClick={back}>Previous part</button>
          <button type="button" disabled={page.next === null} onClick={() => page.next !== null && void turn(page.next, [...page.starts, page.from])}>Next part</button>
        </div>
      )}
    </>
  );
}

/** As the server counts them: not by halves of surrogate pairs. */
function characters(text: string): number {
  let halves = 0;
  for (let n = 0; n < text.length - 1; n += 1) {
    if ((text.charCodeAt(n) & 0xfc00) === 0xd800 && (text.charCodeAt(n + 1) & 0xfc00) === 0xdc00) halves += 1;
  }
  return text.length - halves;
}
