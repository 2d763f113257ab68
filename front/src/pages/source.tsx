// The overview of a source: the status and curves of a run, the results of an evaluation, and the rewards, stop reasons, failures and tools of all.
import type { JSX } from "preact";
import { address, useApi, withQuery } from "../api";
import type { Command, SourceDetail } from "../api";
import { Bars, Histogram } from "../charts/bars";
import { interval } from "../charts/interval";
import { embedded } from "../embedded";
import { count, many, score, share, words } from "../format";
import { CommandLine, Facts, flattened, Panel, Settings, toolName } from "../parts/bits";
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
            {!embedded && <Commands id={id} />}
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
    return <Panel title="Rollouts" wide><Empty title={source.indexing ? "Indexing: no rollouts yet." : "No rollouts yet."} /></Panel>;
  }
  return (
    <>
      <Panel title="Reward" more={<span class="panel-figure"><b class="number">{score(reward.mean)}</b>{reward.low !== null && <> {interval(reward.low, reward.high)}</>}</span>}>
        {reward.histogram && counts.scored > 0
          ? <Histogram data={reward.histogram} mean={reward.mean} to={(low, high) => to({ min_score: low, max_score: high })} />
          : <Empty title="No scored rollouts." />}
        <Facts facts={[
          ["groups", <span class="number">{count(counts.groups)}</span>], ["rollouts", <span class="number">{count(counts.rollouts)}</span>],
          ["scored", <span class="number">{count(counts.scored)}</span>], ["not scored", <span class="number">{count(counts.rollouts - counts.scored)}</span>],
          ...(counts.withheld ? [["groups withheld from training", <span class="number">{count(counts.withheld)}</span>] as [string, JSX.Element]] : []),
        ]} />
      </Panel>
      <Panel title="Stop reasons" more={<span class="panel-note">of scored rollouts</span>}>
        <Bars total={counts.scored} bars={source.stop_reasons.map((one) => ({ name: words(one.reason), count: one.count, to: to({ stop_reason: one.reason, failure: "none" }) }))} />
      </Panel>
      <Panel title="Failures by cause" more={<span class="panel-note">{share(counts.failed, counts.rollouts)} of rollouts, excluded from all means</span>}>
        {failures.length
          ? <Bars total={counts.rollouts} bars={failures.map((one) => ({ name: one.cause, count: one.count, to: to({ failure: one.cause }), bad: true }))} />
          : <Empty title="No failures." />}
      </Panel>
      <Panel title="Tools" more={<span class="panel-note">number of calls; errors in red</span>}>
        {tools.length
          ? <Bars bars={tools.map((one) => ({ name: toolName(one.name), count: one.calls, part: one.errors, to: to({ tool: one.name }), note: one.errors ? many(one.errors, "error") : "" }))} />
          : <Empty title="No tool calls." />}
      </Panel>
      {source.broken && source.broken.length > 0 && (
        <Panel title="Unreadable lines" wide more={<span class="panel-note">{many(counts.broken ?? source.broken.length, "line")} skipped</span>}>
          <table class="tight">
            <thead><tr><th class="right">Line</th><th>Reason</th></tr></thead>
            <tbody>{source.broken.map((one) => <tr key={one.line}><td class="right number">{count(one.line)}</td><td><Block value={one.why} /></td></tr>)}</tbody>
          </table>
        </Panel>
      )}
      {(source.config ?? source.provenance) && (
        <Panel title="Configuration" wide>
          {source.config && <details><summary>{many(flattened(source.config).length, "setting")}</summary><Settings value={source.config} /></details>}
          {source.provenance && <details><summary>Provenance (versions and fingerprints)</summary><Settings value={source.provenance} /></details>}
        </Panel>
      )}
    </>
  );
}

/** What to type next, for as long as there is a machine to type it on. */
function Commands({ id }: { id: string }): JSX.Element | null {
  const { data } = useApi<{ commands: Command[] }>(address(id, "commands"));
  if (!data?.commands.length) return null;
  return (
    <Panel title="Next commands" wide>
      <ul class="commands">{data.commands.map((command) => <CommandLine key={command.line} command={command} />)}</ul>
    </Panel>
  );
}
