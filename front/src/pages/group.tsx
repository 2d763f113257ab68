// A group: its rollouts, how the better ones differ from the worse ones, and two conversations side by side.
import type { JSX } from "preact";
import { address, useApi } from "../api";
import type { Contrast, Group, RolloutRow } from "../api";
import { count, number, score, seconds, signed, words } from "../format";
import { Facts, Json, Jsonl, Panel, Score, Settings, toolName, used } from "../parts/bits";
import { Trail, useTitle } from "../parts/head";
import { Empty, Given } from "../parts/states";
import { Block, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";
import { Conversation } from "./conversation";

export function GroupPage({ source, id }: { source: string; id: string }): JSX.Element {
  const answer = useApi<Group>(address(source, "groups", id));
  useTitle(answer.data ? `Group ${answer.data.item_id}` : null);
  return (
    <div class="page">
      <Trail source={source} steps={[["Groups", link(source, "groups")]]} />
      <Given answer={answer}>{(group) => <Shown source={source} group={group} />}</Given>
    </div>
  );
}

function Shown({ source, group }: { source: string; group: Group }): JSX.Element {
  const title = group.rollouts.find((row) => row.title)?.title;
  const scored = group.rollouts.filter((row) => row.score !== null).map((row) => row.score ?? 0);
  return (
    <>
      <div class="head">
        <div class="head-line">
          <h1 class="item-title"><Name value={title || group.item_id} /></h1>
          <span class="grow" />
          <Jsonl path={address(source, "groups", `${group.id}.jsonl`)} keys />
        </div>
        <Facts facts={[
          ["item", <Name value={group.item_id} />], ["rollouts", count(group.rollouts_total ?? group.rollouts.length)], ["scored", count(scored.length)],
          ["tools", Array.isArray(group.tools) && group.tools.length ? <Name value={group.tools.join(", ")} /> : "none"],
          ...(used(group.use) ? [["training", used(group.use) ?? ""] as [string, string]] : []),
          ...(group.withheld ? [["withheld from training", words(group.withheld)] as [string, string]] : []),
        ]} />
      </div>
      <div class="panels">
        <Panel title="Rollouts" wide more={Object.keys(group.advantages).length > 0 && <span class="panel-note">advantage: {group.advantage_rule}</span>}>
          <div class="cards">
            {group.rollouts.map((row) => <Card key={row.id} source={source} row={row} advantage={group.advantages[row.id] ?? null} />)}
          </div>
        </Panel>
        <Panel title="Better and worse rollouts" wide more={<span class="panel-note">averages of the rollouts above and below the mean score</span>}>
          {group.contrast.length ? <Contrasts rows={group.contrast} /> : <Empty title={new Set(scored).size > 1 ? "No measured difference." : "All scores are equal."} />}
        </Panel>
        <Beside source={source} rollouts={group.rollouts} />
        <Panel title="Item" wide>
          <details open={JSON.stringify(group.item ?? null).length < 800}><summary>Item as JSON</summary><Json value={group.item} /></details>
          {group.provenance && <details><summary>Provenance (versions and fingerprints)</summary><Settings value={group.provenance} /></details>}
        </Panel>
      </div>
    </>
  );
}

function Card({ source, row, advantage }: { source: string; row: RolloutRow; advantage: number | null }): JSX.Element {
  return (
    <article class={row.score === null ? "card failed" : "card"}>
      <h3><Link row to={link(source, "rollouts", row.id)}>Rollout {row.index}</Link></h3>
      <Score value={row.score} failure={row.failure} />
      <dl>
        {advantage !== null && <div><dt>advantage</dt><dd class="number strong">{signed(advantage)}</dd></div>}
        {row.seat && <div><dt>seat</dt><dd><Name value={row.seat} /></dd></div>}
        <div><dt>stopped</dt><dd>{row.stop_reason ? <Name value={words(row.stop_reason)} /> : "–"}</dd></div>
        <div><dt>turns</dt><dd class="number">{count(row.turns)}</dd></div>
        <div><dt>tool calls</dt><dd class="number">{count(row.tool_calls)}{row.tool_errors ? <span class="errors"> {count(row.tool_errors)} ✕</span> : null}</dd></div>
        <div><dt>tokens</dt><dd class="number">{count(row.completion_tokens)}</dd></div>
        <div><dt>duration</dt><dd class="number">{seconds(row.seconds)}</dd></div>
      </dl>
      {row.tools.length > 0 && <p class="card-tools"><Name value={row.tools.map(toolName).join(", ")} /></p>}
    </article>
  );
}

const WHAT: Record<string, string> = { tool: "calls to", stop_reason: "share stopped by", component: "reward component", turns: "", length: "" };

function Contrasts({ rows }: { rows: Contrast[] }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Better and worse rollouts, table">
      <table class="tight contrast">
        <thead><tr><th>Measure</th><th class="right">Worse</th><th aria-hidden="true" /><th>Better</th></tr></thead>
        <tbody>
          {rows.map((row) => {
            const most = Math.max(Math.abs(row.good ?? 0), Math.abs(row.bad ?? 0)) || 1;
            return (
              <tr key={`${row.what} ${row.name}`}>
                <th scope="row">{row.what === row.name || WHAT[row.what] === "" ? words(row.name) : <>{WHAT[row.what] ?? words(row.what)} <b><Name value={row.what === "tool" ? toolName(row.name) : row.what === "component" ? row.name : words(row.name)} /></b></>}</th>
                <td class="right number">{number(row.bad, 2)}</td>
                <td class="contrast-bars" aria-hidden="true">
                  <span class="worse"><i style={{ width: `${(100 * Math.abs(row.bad ?? 0)) / most}%` }} /></span>
                  <span class="better"><i style={{ width: `${(100 * Math.abs(row.good ?? 0)) / most}%` }} /></span>
                </td>
                <td class="number">{number(row.good, 2)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** Two conversations next to each other: the best and the worst, until others are chosen. */
function Beside({ source, rollouts }: { source: string; rollouts: RolloutRow[] }): JSX.Element | null {
  const { query } = usePlace();
  if (rollouts.length < 2) return null;
  const order = [...rollouts].sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity));
  const find = (name: string, otherwise: RolloutRow | undefined): RolloutRow | undefined => rollouts.find((row) => row.id === query.get(name)) ?? otherwise;
  const sides: [string, string, RolloutRow | undefined][] = [["left", "Left", find("left", order[0])], ["right", "Right", find("right", order.at(-1))]];
  return (
    <Panel title="Side by side" wide more={<span class="panel-note">best and worst by default</span>}>
      <div class="beside">
        {sides.map(([name, label, row]) => row && (
          <div key={name} class="beside-one">
            <label>
              <span class="visually-hidden">{label}</span>
              <select value={row.id} onChange={(event) => go(changed({ [name]: event.currentTarget.value }), true)}>
                {rollouts.map((one) => <option key={one.id} value={one.id}>{`Rollout ${one.index} · ${one.score === null ? (one.failure ?? "not scored") : score(one.score)}`}</option>)}
              </select>
            </label>
            <div class="beside-text" tabIndex={0} role="region" aria-label={`${label}: rollout ${row.index}`}>
              <Conversation key={row.id} source={source} rollout={row.id} narrow />
            </div>
          </div>
        ))}
      </div>
    </Panel>
  );
}

export function FailureNote({ row, message }: { row: RolloutRow; message: string | null }): JSX.Element | null {
  if (!row.failure) return null;
  return (
    <div class="trouble">
      <p><b><Name value={row.failure} /></b>: not scored, and excluded from all means.</p>
      {message && <Block value={message} mono />}
    </div>
  );
}
