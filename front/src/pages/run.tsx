// A run: its status, its learning curve with the confidence band, and other metrics.
import type { JSX } from "preact";
import { address, useApi, withQuery } from "../api";
import type { Curve, Live } from "../api";
import { Line } from "../charts/line";
import { Smoothing, useSmoothing } from "../charts/smoothing";
import { embedded } from "../embedded";
import { count, many, number, seconds } from "../format";
import { Panel, State, When } from "../parts/bits";
import { plain } from "../odd";
import { Empty, Given } from "../parts/states";
import { Block, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";

export const FIRST = ["reward/mean", "reward"];
const OTHERS: [string, string[]][] = [
  ["Staleness (policy versions)", ["staleness/mean", "staleness/max"]],
  ["Throughput (tokens per second)", ["tokens/per_second"]],
  ["Groups with equal scores", ["groups/zero_signal"]],
  ["Entropy", ["entropy"]],
  ["KL divergence, sampler to trainer", ["kl/sample_train_k3", "kl/sample_train_k1"]],
  ["Seconds per step", ["time/step"]],
  ["Audit gap, trained minus audited reward", ["audit/gap"]],
];

export function Learning({ id }: { id: string }): JSX.Element {
  const live = useApi<Live>(address(id, "live"), 2500);
  const curve = useApi<Curve>(address(id, "curve"), 10_000);
  return (
    <>
      <Panel title="Status" wide more={live.data?.updated_at ? <span class="panel-note"><When at={live.data.updated_at} /></span> : undefined}>
        <Given answer={live}>{(data) => <Now live={data} />}</Given>
      </Panel>
      <Given answer={curve}>{(data) => <Curves id={id} curve={data} total={live.data?.total_steps ?? null} />}</Given>
    </>
  );
}

function Now({ live }: { live: Live }): JSX.Element {
  const figures: [string, string][] = [
    ["tokens per second", number(live.tokens_per_second)], ["groups per minute", number(live.groups_per_minute)],
    ["staleness", number(live.staleness)],
  ];
  if (live.queue !== null) figures.push(["rollouts queued", count(live.queue)]);
  if (live.minutes_left) figures.push(["time left", seconds(live.minutes_left * 60)]);
  else if (live.running_minutes != null) figures.push(["run time", seconds(live.running_minutes * 60)]);
  return (
    <div class="now">
      <div class="now-steps">
        <span class="figure"><b class="number">{count(live.step)}</b>{live.total_steps !== null && <span class="number"> / {count(live.total_steps)}</span>}</span>
        <span class="figure-name">steps</span>
        {live.total_steps !== null && <progress max={Math.max(1, live.total_steps)} value={live.step ?? 0} aria-label="Finished steps" />}
      </div>
      {figures.map(([name, value]) => (
        <div key={name}><span class="figure"><b class="number">{value}</b></span><span class="figure-name">{name}</span></div>
      ))}
      <ul class="parts" aria-label="Components">
        {live.parts.map((part) => (
          <li key={part.name} {...(part.problem ? { title: plain(part.problem) } : {})}>
            <Name value={part.name} /><State value={part.state} />{part.restarts ? <span class="muted">{many(part.restarts, "restart")}</span> : null}
          </li>
        ))}
      </ul>
      {live.stalled && <div class="now-reason"><Block value={live.stalled} /></div>}
      {live.reason && <div class="now-reason"><Block value={live.reason} /></div>}
    </div>
  );
}

function Curves({ id, curve, total }: { id: string; curve: Curve; total: number | null }): JSX.Element {
  const { query } = usePlace();
  const window = useSmoothing(curve.steps.length);
  const names = Object.keys(curve.series).sort();
  const wanted = query.get("metric");
  const name = wanted && names.includes(wanted) ? wanted : (FIRST.find((one) => names.includes(one)) ?? names[0]);
  if (!curve.steps.length || name === undefined) {
    return <Panel title="Learning curve" wide><Empty title="No step finished yet."><p>The curve starts with the trainer's first step.</p></Empty></Panel>;
  }
  const choose = (
    <span class="chart-choices">
    <Smoothing steps={curve.steps.length} />
    <label class="panel-note">metric{" "}
      <select value={name} onChange={(event) => go(changed({ metric: event.currentTarget.value }), true)}>
        {names.map((one) => <option key={one} value={one}>{one}</option>)}
      </select>
    </label>
    {(!embedded || embedded.about.runs > 1) && <Link to={`/overlay?${new URLSearchParams({ runs: id, metric: name })}`}>Overlay with other runs</Link>}
    </span>
  );
  const others = OTHERS.map(([title, among]) => [title, among.find((one) => names.includes(one))] as const);
  return (
    <>
      <Panel title="Learning curve" wide more={choose}>
        <Line key={name} name={name} steps={curve.steps} values={curve.series[name] ?? []} band={curve.bands[name]} total={total} window={window} onStep={(step) => go(withQuery(link(id, "groups"), { step }))} />
        <p class="note">Click a step to see the groups it was trained on.{curve.bands[name] && (name === "audit/gap" ? <> Shaded: its 95% confidence interval, with groups as independent.</> : <> Shaded: the 95% confidence interval of each step's mean reward, from the number of rollouts in the step and how much their rewards differ, as if they were independent.</>)}</p>
      </Panel>
      <Panel title="Other metrics" wide>
        <div class="smalls">
          {others.map(([title, one]) => one && <Line key={one} small height={96} name={title} steps={curve.steps} values={curve.series[one] ?? []} band={one === "audit/gap" ? curve.bands[one] : undefined} window={window} />)}
        </div>
      </Panel>
    </>
  );
}
