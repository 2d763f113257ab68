// The overview of a source: how a run learns and lives, what an evaluation measured, and of all what the rollouts came to.
import type { JSX } from "preact";
import { withQuery } from "../api";
import type { SourceDetail } from "../api";
import { Bars, Histogram } from "../charts/bars";
import { interval } from "../charts/interval";
import { count, many, score, share, words } from "../format";
import { Facts, Json, Panel } from "../parts/bits";
import { Head, useSource } from "../parts/head";
import { Empty, Given } from "../parts/states";
import { Block } from "../parts/text";
import { link } from "../route";
import { Measured } from "./evaluation";
import { Learning } from "./run";

export function SourcePage({ source: id }: { source: string }): JSX.Element {
  const answer = useSource(id);
  return (
    <div class="page">
      <Head source={answer.data} now="Overview" id={id} />
      <Given answer={answer}>
        {(source) => (
          <div class="panels">
            {source.kind === "run" && <Learning id={id} />}
            {source.kind === "evaluation" && <Measured id={id} />}
            <Outcome source={source} />
          </div>
        )}
      </Given>
    </div>
  );
}

function Outcome({ source }: { source: SourceDetail }): JSX.Element {
  const { counts, reward, failures, tools } = source;
  const to = (query: Record<string, string | number>): string => withQuery(link(source.id, "rollouts"), query);
  if (!counts.rollouts) {
    return <Panel title="Rollouts" wide><Empty title={source.indexing ? "No rollout read yet." : "No rollout yet."} /></Panel>;
  }
  return (
    <>
      <Panel title="Reward" more={<span class="panel-figure"><b class="number">{score(reward.mean)}</b>{reward.low !== null && <> {interval(reward.low, reward.high)}</>}</span>}>
        {reward.histogram && counts.scored > 0
          ? <Histogram data={reward.histogram} mean={reward.mean} to={(low, high) => to({ min_score: low, max_score: high })} />
          : <Empty title="No rollout has a score." />}
        <Facts facts={[
          ["groups", <span class="number">{count(counts.groups)}</span>], ["rollouts", <span class="number">{count(counts.rollouts)}</span>],
          ["scored", <span class="number">{count(counts.scored)}</span>], ["without a score", <span class="number">{count(counts.failed)}</span>],
          ["withheld", <span class="number">{count(counts.withheld)}</span>],
        ]} />
      </Panel>
      <Panel title="Why they stopped" more={<span class="panel-note">scored rollouts</span>}>
        <Bars total={counts.scored} bars={source.stop_reasons.map((one) => ({ name: words(one.reason), count: one.count, to: to({ stop_reason: one.reason }) }))} />
      </Panel>
      <Panel title="Failures by cause" more={<span class="panel-note">{share(counts.failed, counts.rollouts)} of rollouts, in no mean</span>}>
        {failures.length
          ? <Bars total={counts.rollouts} bars={failures.map((one) => ({ name: one.cause, count: one.count, to: to({ failure: one.cause }), bad: true }))} />
          : <Empty title="Nothing failed." />}
      </Panel>
      <Panel title="Tools" more={<span class="panel-note">calls, those with an error in red</span>}>
        {tools.length
          ? <Bars bars={tools.map((one) => ({ name: one.name, count: one.calls, part: one.errors, to: to({ tool: one.name }), note: one.errors ? many(one.errors, "error") : "" }))} />
          : <Empty title="No tool was called." />}
      </Panel>
      {source.broken && source.broken.length > 0 && (
        <Panel title="Could not be read" wide more={<span class="panel-note">{many(counts.broken ?? source.broken.length, "line")}, left out</span>}>
          <table class="tight">
            <thead><tr><th class="right">Line</th><th>Why</th></tr></thead>
            <tbody>{source.broken.map((one) => <tr key={one.line}><td class="right number">{count(one.line)}</td><td><Block value={one.why} /></td></tr>)}</tbody>
          </table>
        </Panel>
      )}
      {(source.config ?? source.provenance) && (
        <Panel title="How it was made" wide>
          {source.config && <details><summary>Configuration</summary><Json value={source.config} /></details>}
          {source.provenance && <details><summary>Provenance</summary><Json value={source.provenance} /></details>}
        </Panel>
      )}
    </>
  );
}
