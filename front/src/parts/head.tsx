// The head of every page of one source: what it is, and the way to its other pages.
import type { ComponentChildren, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { address, useApi } from "../api";
import type { Answer, Kind, SourceDetail } from "../api";
import { embedded } from "../embedded";
import { count, model } from "../format";
import { plain } from "../odd";
import { Link, link } from "../route";
import { State, Tabs, When } from "./bits";
import { Condition } from "./states";
import { Name } from "./text";

export const KINDS: Record<Kind, string> = { run: "Run", groups: "Rollouts", evaluation: "Evaluation", database: "Database" };

const ENDED = ["FINISHED", "FAILED", "STOPPED", "INTERRUPTED"];

/** The source, asked again soon while it is being read or runs. */
export function useSource(id: string): Answer<SourceDetail> {
  const first = useApi<SourceDetail>(address(id));
  const source = first.data;
  const alive = source?.kind === "run" && source.state !== null && !ENDED.includes(source.state.toUpperCase());
  const later = useApi<SourceDetail>(source && (source.indexing || alive) ? address(id) : null, source?.indexing ? 1000 : 5000);
  return later.data ? later : first;
}

export function Head({ source, now, id }: { source: SourceDetail | null; now: string; id: string }): JSX.Element {
  useTitle(source ? `${source.name} · ${now}` : null);
  const number = (value: number | null | undefined): ComponentChildren => value ? <span class="tab-count">{count(value)}</span> : null;
  return (
    <div class="head">
      <div class="head-line">
        <h1>{source ? <Name value={source.name} /> : <Name value={id} />}</h1>
        {source && <State value={source.state} />}
        {source && (
          <p class="head-facts">
            <span>{KINDS[source.kind]}</span>
            {source.environment && <span><Name value={source.environment} /></span>}
            {source.model && <span><Name value={model(source.model)} /></span>}
            {source.updated_at && <span><When at={source.updated_at} /></span>}
          </p>
        )}
      </div>
      <Tabs label="This source" now={now} tabs={[
        ["Overview", link(id)],
        ["Groups", link(id, "groups"), number(source?.counts.groups)],
        ["Rollouts", link(id, "rollouts"), number(source?.counts.rollouts)],
        ...(source?.kind === "run" && !embedded ? [["Logs", link(id, "logs")] as [string, string]] : []),
      ]} />
      {source && <Condition source={source} />}
    </div>
  );
}

/** The way from the sources to this page, for pages below a source. */
export function Trail({ source, steps }: { source: string; steps: [string, string][] }): JSX.Element {
  const name = useApi<SourceDetail>(address(source)).data?.name ?? source;
  const way: [string, string][] = [["Sources", "/"], [name, link(source)], ...steps];
  return (
    <nav class="trail" aria-label="Breadcrumb">
      <ol>
        {way.map(([title, to]) => <li key={to}><Link to={to}><Name value={title} /></Link></li>)}
      </ol>
    </nav>
  );
}

export function useTitle(title: string | null): void {
  useEffect(() => {
    if (title) document.title = `${plain(title, 80)} · hermes-rl`;
  }, [title]);
}
