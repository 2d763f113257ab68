// Search: the rollouts of a source by score, stop reason, failure, tool and text. Always true: the address holds every filter.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, useApi, withQuery } from "../api";
import type { Page, RolloutRow, SourceDetail } from "../api";
import { count, seconds, words } from "../format";
import { Score, toolName } from "../parts/bits";
import { Head, useSource } from "../parts/head";
import { Pages, ROWS } from "../parts/pages";
import { Empty, Given } from "../parts/states";
import { Block, Line, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";
import { Sort } from "./groups";

const FILTERS = ["q", "min_score", "max_score", "stop_reason", "failure", "tool"];
const SORTS: [string, string][] = [
  ["", "file order"], ["-n", "newest first"], ["-score", "highest score"], ["score", "lowest score"], ["-seconds", "slowest"], ["seconds", "fastest"],
  ["-tokens", "most tokens"], ["-tool_errors", "most tool errors"],
];

export function Rollouts({ source: id }: { source: string }): JSX.Element {
  const source = useSource(id);
  const { query } = usePlace();
  const asked = Object.fromEntries([...FILTERS, "sort", "after"].map((name) => [name, query.get(name)]));
  const answer = useApi<Page<RolloutRow>>(withQuery(address(id, "rollouts"), { limit: ROWS, ...asked }), source.data?.indexing ? 2000 : null);
  const filtered = FILTERS.some((name) => query.get(name));
  return (
    <div class="page">
      <Head source={source.data} now="Rollouts" id={id} />
      <Filters source={source.data} filtered={filtered} />
      <Given answer={answer}>
        {(page) => page.rows.length ? (
          <>
            <RolloutTable source={id} rows={page.rows} find={query.get("q")} />
            <Pages page={page} one="rollout" />
          </>
        ) : filtered ? (
          <Empty title="No matching rollouts."><p><button type="button" onClick={clear}>Clear filters</button></p></Empty>
        ) : <Empty title="No rollouts yet." />}
      </Given>
    </div>
  );
}

function Filters({ source, filtered }: { source: SourceDetail | null; filtered: boolean }): JSX.Element {
  return (
    <form class="filters" role="search" aria-label="Rollouts" onSubmit={(event) => event.preventDefault()}>
      <Typed name="q" label="Search" type="search" placeholder="words in messages, calls and results" search />
      <Typed name="min_score" label="Min. score" type="number" />
      <Typed name="max_score" label="Max. score" type="number" />
      <Chosen name="stop_reason" label="Stop reason" values={source?.stop_reasons.map((one) => one.reason) ?? []} />
      <Chosen name="failure" label="Failure" values={source?.failures.length ? ["none", ...source.failures.map((one) => one.cause)] : []} first={["any", "any failure"]} />
      <Chosen name="tool" label="Tool" values={source?.tools.map((one) => one.name) ?? []} />
      <Sort sorts={SORTS} />
      {filtered && <button type="button" class="quiet" onClick={clear}>Clear</button>}
    </form>
  );
}

interface TypedProps { name: string; label: string; type: "search" | "number"; placeholder?: string; search?: boolean }

function Typed({ name, label, type, placeholder, search }: TypedProps): JSX.Element {
  const given = usePlace().query.get(name) ?? "";
  const [value, setValue] = useState(given);
  const timer = useRef(0);
  useEffect(() => setValue(given), [given]);
  const type_ = (text: string): void => {
    setValue(text);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => go(changed({ [name]: text, after: null }), true), 250);
  };
  return (
    <label class={search ? "wide" : undefined}>
      <span>{label}</span>
      <input type={type} step="any" value={value} placeholder={placeholder ?? ""} {...(search ? { "data-search": "" } : {})} onInput={(event) => type_(event.currentTarget.value)} />
    </label>
  );
}

interface ChosenProps { name: string; label: string; values: string[]; first?: [string, string] }

function Chosen({ name, label, values, first }: ChosenProps): JSX.Element {
  const value = usePlace().query.get(name) ?? "";
  const all = value && value !== first?.[0] && !values.includes(value) ? [value, ...values] : values;
  return (
    <label>
      <span>{label}</span>
      <select value={value} onChange={(event) => go(changed({ [name]: event.currentTarget.value, after: null }))}>
        <option value="">any</option>
        {first && (all.length > 0 || value === first[0]) && <option value={first[0]}>{first[1]}</option>}
        {all.map((one) => <option key={one} value={one}>{name === "failure" && one === "none" ? "no failure" : name === "tool" ? toolName(one) : words(one)}</option>)}
      </select>
    </label>
  );
}

export function RolloutTable({ source, rows, find }: { source: string; rows: RolloutRow[]; find: string | null }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Rollouts, table">
      <table>
        <thead>
          <tr><th>Score</th><th>Rollout</th><th>Stop reason</th><th class="right">Turns</th><th class="right">Tool calls</th><th class="right">Tokens</th><th class="right">Duration</th><th class="right">Version</th></tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id}>
              <td><Score value={row.score} failure={row.failure} /></td>
              <th scope="row" class="main">
                <Link row to={withQuery(link(source, "rollouts", row.id), { q: find })}><Line value={row.title || row.item_id} find={find} /></Link>
                <span class="place number">{row.seat && <Name value={`${row.seat} `} />}#{row.index}</span>
                {row.snippet && <span class="snippet"><Block value={row.snippet} find={find} /></span>}
              </th>
              <td>{row.stop_reason ? <Name value={words(row.stop_reason)} /> : "–"}</td>
              <td class="right number">{count(row.turns)}</td>
              <td class="right number">{count(row.tool_calls)}{row.tool_errors ? <span class="errors"> {count(row.tool_errors)} ✕</span> : null}</td>
              <td class="right number">{count(row.completion_tokens)}</td>
              <td class="right number">{seconds(row.seconds)}</td>
              <td class="right number muted">{versions(row.version)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function versions(version: { low: number; high: number } | null): string {
  if (!version) return "–";
  return version.low === version.high ? `v${version.low}` : `v${version.low}–${version.high}`;
}

function clear(): void {
  go(changed(Object.fromEntries([...FILTERS, "after"].map((name) => [name, null]))));
}
