// What can be looked at: runs, evaluations and files of rollouts.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useApi } from "../api";
import type { Home, Kind, Source } from "../api";
import { embedded } from "../embedded";
import { count, model, score, share } from "../format";
import { State, When } from "../parts/bits";
import { useTitle } from "../parts/head";
import { Empty, Given } from "../parts/states";
import { Line } from "../parts/text";
import { MOST } from "./overlay";
import { changed, go, Link, link, usePlace } from "../route";

const PARTS: [string, Kind[]][] = [["Runs", ["run"]], ["Evaluations", ["evaluation"]], ["Rollouts", ["groups", "database"]]];
const SHOWN = 300;

export function HomePage(): JSX.Element {
  const home = useApi<Home>("/api/home", 5000);
  const { query } = usePlace();
  const find = (query.get("q") ?? "").toLowerCase();
  useTitle("Sources");
  return (
    <div class="page">
      <div class="head">
        <div class="head-line">
          <h1>Sources</h1>
          {home.data && <p class="head-facts"><span>hermes-rl {home.data.version}</span></p>}
          <span class="grow" />
          <input type="search" data-search aria-label="Filter sources" placeholder="Filter by name, environment, model" value={query.get("q") ?? ""}
            onInput={(event) => go(changed({ q: event.currentTarget.value }), true)} />
        </div>
      </div>
      <Given answer={home}>
        {(data) => {
          if (!data.sources.length) return <Nothing />;
          const matching = data.sources.filter((source) => matches(source, find));
          if (!matching.length) return <Empty title="No matches." />;
          return PARTS.map(([title, kinds]) => {
            const sources = matching.filter((source) => kinds.includes(source.kind));
            return sources.length > 0 && <Table key={title} title={title} sources={sources} />;
          });
        }}
      </Given>
    </div>
  );
}

function Table({ title, sources }: { title: string; sources: Source[] }): JSX.Element {
  const [chosen, setChosen] = useState<string[]>([]);
  const run = title === "Runs";
  const most = run ? MOST : 2;
  // A report holds comparisons of evaluations only.
  const comparable = sources.length > 1 && (!embedded || title !== "Rollouts");
  const toggle = (id: string, on: boolean): void => setChosen((old) => (on ? [...old, id].slice(-most) : old.filter((one) => one !== id)));
  return (
    <section class="list" aria-label={title}>
      <header>
        <h2>{title}</h2>
        <span class="tab-count">{count(sources.length)}</span>
        <span class="grow" />
        {comparable && (
          <button type="button" disabled={chosen.length < 2}
            onClick={() => go(run ? `/overlay?${new URLSearchParams({ runs: chosen.join(",") })}` : `/compare?${new URLSearchParams({ a: chosen[0] ?? "", b: chosen[1] ?? "" })}`)}>
            {run ? "Overlay selected" : "Compare selected"}
          </button>
        )}
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label={`${title}, table`}>
        <table class="sources">
          <thead>
            <tr>
              {comparable && <th class="tick-box"><span class="visually-hidden">Select</span></th>}
              <th class="main">Name</th>{run && <th class="state-cell">State</th>}<th class="name-cell spare">Environment</th><th class="name-cell spare">Model</th>
              <th class="right count-cell spare">Groups</th><th class="right count-cell">Rollouts</th><th class="right reward-cell">Mean reward</th><th class="right reward-cell spare">Updated</th>
            </tr>
          </thead>
          <tbody>
            {sources.slice(0, SHOWN).map((source) => (
              <tr key={source.id}>
                {comparable && (
                  <td class="tick-box">
                    <input type="checkbox" aria-label={`Select ${source.name}`} checked={chosen.includes(source.id)} onChange={(event) => toggle(source.id, event.currentTarget.checked)} />
                  </td>
                )}
                <th scope="row" class="main">
                  <Link row to={link(source.id)}><Line value={source.name} /></Link>
                  {source.problem && <span class="flag bad"><Line value={source.problem} /></span>}
                  {source.indexing && <span class="flag">indexing {share(source.indexing.done_bytes, source.indexing.total_bytes)}</span>}
                </th>
                {run && <td><State value={source.state} /></td>}
                <td class="spare">{source.environment ? <Line value={source.environment} /> : "–"}</td>
                <td class="spare">{source.model ? <Line value={model(source.model)} /> : "–"}</td>
                <td class="right number spare">{count(source.groups)}</td>
                <td class="right number">{count(source.rollouts)}</td>
                <td class="right number">{score(source.reward_mean)}</td>
                <td class="right spare"><When at={source.updated_at} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {sources.length > SHOWN && <p class="note">Showing the first {SHOWN} of {count(sources.length)}. Use the filter to find others.</p>}
    </section>
  );
}

function Nothing(): JSX.Element {
  return (
    <Empty title="No runs or evaluations yet.">
      <p>Runs, evaluations and files of rollouts appear here as they are written. To make a first one:</p>
      <p><code>hermes-rl process terminal_test</code></p>
      <p>To open a file: <code>hermes-rl view FILE</code></p>
    </Empty>
  );
}

function matches(source: Source, find: string): boolean {
  return [source.name, source.environment, source.model, source.state].some((part) => part?.toLowerCase().includes(find)) || !find;
}
