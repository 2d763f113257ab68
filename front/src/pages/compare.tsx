// Two evaluations compared: the difference, whether it is significant, what else differs between them, and on which items.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useApi, withQuery } from "../api";
import type { Comparison, Home, Source } from "../api";
import { common, interval, Whisker } from "../charts/interval";
import { decimals, many, model, number, score, signed, words } from "../format";
import { Panel, Score, Value } from "../parts/bits";
import { useTitle } from "../parts/head";
import { Empty, Given } from "../parts/states";
import { Block, Line, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";
import { bare } from "./evaluation";

export function Compare(): JSX.Element {
  const home = useApi<Home>("/api/home");
  const { query } = usePlace();
  const [a, b] = [query.get("a"), query.get("b")];
  const path = a && b ? withQuery("/api/compare", { a, b }) : null;
  const [partial, setPartial] = useState(false);
  const answer = useApi<Comparison>(path, partial ? 1500 : null);
  useEffect(() => setPartial(answer.data !== null && isPartial(answer.data)), [answer.data]);
  useTitle("Compare");
  return (
    <div class="page">
      <div class="head"><div class="head-line"><h1>Compare</h1></div></div>
      <Given answer={home}>
        {(data) => {
          const choices = [...data.sources.filter((source) => source.kind === "evaluation"), ...data.sources.filter((source) => ["groups", "database"].includes(source.kind))];
          if (choices.length < 2) {
            return <Empty title="Nothing to compare yet."><p>Make two evaluations with <code>hermes-rl evaluate ENVIRONMENT</code>, or open two files of groups.</p></Empty>;
          }
          return (
            <div class="choices">
              <Choice name="a" label="First" value={a} choices={choices} />
              <button type="button" class="quiet" aria-label="Swap first and second" onClick={() => go(changed({ a: b, b: a }))}>⇄</button>
              <Choice name="b" label="Second" value={b} choices={choices} />
            </div>
          );
        }}
      </Given>
      {a && b && <Given answer={answer}>{(data) => <Compared data={data} />}</Given>}
    </div>
  );
}

function isPartial(data: Comparison): boolean {
  return data.a.indexing !== null || data.b.indexing !== null;
}

function Choice({ name, label, value, choices }: { name: string; label: string; value: string | null; choices: Source[] }): JSX.Element {
  return (
    <label>
      <span>{label}</span>
      <select value={value ?? ""} onChange={(event) => go(changed({ [name]: event.currentTarget.value }))}>
        <option value="">Select…</option>
        {choices.map((source) => <option key={source.id} value={source.id}>{[source.name, source.model && model(source.model)].filter(Boolean).join(" · ")}</option>)}
      </select>
    </label>
  );
}

function Compared({ data }: { data: Comparison }): JSX.Element {
  const unequal = data.differences.filter((one) => one.name !== "model");
  const judged = data.metrics.filter((metric) => metric.low !== null || metric.a.low !== null);
  const others = data.metrics.filter((metric) => !judged.includes(metric));
  const around = common(judged.filter((metric) => metric.low !== null).flatMap((metric) => [metric.difference, metric.low, metric.high]), true);
  return (
    <div class="panels">
      {isPartial(data) && <Panel title="Indexing" wide><p class="indexing" role="status">Indexing has not finished: these numbers cover only part of the items.</p></Panel>}
      {unequal.length > 0 && <p class="caution" role="note">Besides their scores, the two differ in {unequal.map((one) => words(one.name)).join(", ")}. The difference in reward can come from that.</p>}
      <Panel title="Difference" wide more={<span class="panel-note">second minus first; 95% confidence intervals in brackets</span>}>
        <div class="scroll" tabIndex={0} role="region" aria-label="Difference, table">
          <table class="tight compared">
            <thead>
              <tr><th>Metric</th><th>First: <Name value={data.a.name} /></th><th>Second: <Name value={data.b.name} /></th><th class="right">Difference</th>
                <th class="whiskers">{signed(around[0])}<span>{signed(around[1])}</span></th><th>Test</th></tr>
            </thead>
            <tbody>
              {judged.map((metric) => (
                <tr key={metric.name}>
                  <th scope="row"><Name value={bare(metric.name)} /></th>
                  <td><span class="number strong">{score(metric.a.value, decimals(metric.a.low, metric.a.high))}</span> {metric.a.low !== null && interval(metric.a.low, metric.a.high)}</td>
                  <td><span class="number strong">{score(metric.b.value, decimals(metric.b.low, metric.b.high))}</span> {metric.b.low !== null && interval(metric.b.low, metric.b.high)}</td>
                  <td class="right"><span class="number strong">{signed(metric.difference, decimals(metric.low, metric.high))}</span> {metric.low !== null && interval(metric.low, metric.high)}</td>
                  <td>{metric.low !== null && <Whisker value={metric.difference} low={metric.low} high={metric.high} range={around} zero muted={!metric.significant} />}</td>
                  <td>{metric.significant ? <span class="verdict">{(metric.difference ?? 0) > 0 ? "second is higher" : "first is higher"}</span>
                    : metric.low !== null && <span class="muted">not significant</span>}
                    {metric.significant && (metric.low ?? 1) <= 0 && (metric.high ?? -1) >= 0 && <div class="muted">The interval is more conservative: it includes 0.</div>}
                    {metric.note && <div class="muted"><Block value={metric.note} /></div>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {others.length > 0 && (
          <details>
            <summary>{many(others.length, "more metric")} from the reports, without a test</summary>
            <table class="tight">
              <thead><tr><th>Name</th><th class="right">First</th><th class="right">Second</th><th class="right">Difference</th></tr></thead>
              <tbody>
                {others.map((metric) => (
                  <tr key={metric.name}>
                    <th scope="row"><Name value={bare(metric.name)} /></th>
                    <td class="right number">{number(metric.a.value, 4)}</td><td class="right number">{number(metric.b.value, 4)}</td>
                    <td class="right number">{number(metric.difference, 4)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </details>
        )}
      </Panel>
      <Panel title="Settings" wide more={<span class="panel-note">settings that affect the result</span>}>
        <Conditions data={data} />
      </Panel>
      <Panel title="Items" wide more={<span class="panel-note">largest differences first</span>}>
        {data.items.length ? (
          <div class="scroll" tabIndex={0} role="region" aria-label="Items, table">
            <table>
              <thead><tr><th>Item</th><th>First</th><th>Second</th><th class="right">Difference</th></tr></thead>
              <tbody>
                {data.items.map((item) => (
                  <tr key={item.item_id}>
                    <th scope="row" class="main"><Link row to={withQuery(link(data.b.id, "rollouts"), { q: item.item_id })}><Line value={item.title ?? item.item_id} /></Link></th>
                    <td><Score value={item.a} /></td><td><Score value={item.b} /></td>
                    <td class="right number">{item.a !== null && item.b !== null ? signed(item.b - item.a) : "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        ) : <Empty title="No items in common." />}
      </Panel>
    </div>
  );
}

/** What differs between the two, and what is equal. */
function Conditions({ data }: { data: Comparison }): JSX.Element {
  return (
    <>
      <div class="scroll" tabIndex={0} role="region" aria-label="Settings, table">
        <table class="tight conditions">
          <thead><tr><th>Setting</th><th>First</th><th>Second</th></tr></thead>
          <tbody>
            {data.differences.map((one) => (
              <tr key={one.name} class="differs">
                <th scope="row"><Name value={words(one.name)} /></th>
                {one.a === null && one.b === null ? <td colSpan={2}><Block value={one.text} /></td> : <><td><Value value={one.a} /></td><td><Value value={one.b} /></td></>}
              </tr>
            ))}
            {data.same.map((one) => (
              <tr key={one.name}><th scope="row"><Name value={one.name} /></th><td colSpan={2}><Value value={one.value} /> <span class="muted">same in both</span></td></tr>
            ))}
          </tbody>
        </table>
      </div>
      {data.remarks.length > 0 && <ul class="remarks">{data.remarks.map((one) => <li key={one}><Block value={one} /></li>)}</ul>}
    </>
  );
}
