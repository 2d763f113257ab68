// The curves of several runs in one chart, over steps or over time.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { address, ask, useApi } from "../api";
import type { Curve, Home, Source } from "../api";
import { OverlayChart } from "../charts/overlay";
import type { Run } from "../charts/overlay";
import { Smoothing, useSmoothing } from "../charts/smoothing";
import { Panel, State } from "../parts/bits";
import { useTitle } from "../parts/head";
import { Empty, Given } from "../parts/states";
import { Line, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";
import { FIRST } from "./run";

export const MOST = 8;

export function Overlay(): JSX.Element {
  const home = useApi<Home>("/api/home", 10_000);
  useTitle("Overlay");
  return (
    <div class="page">
      <div class="head"><div class="head-line"><h1>Overlay of runs</h1></div></div>
      <Given answer={home}>
        {(data) => {
          const runs = data.sources.filter((source) => source.kind === "run");
          if (!runs.length) return <Empty title="No runs yet."><p>Start one with <code>hermes-rl train ENVIRONMENT</code>.</p></Empty>;
          return <Chosen runs={runs} />;
        }}
      </Given>
    </div>
  );
}

function Chosen({ runs }: { runs: Source[] }): JSX.Element {
  const asked = (usePlace().query.get("runs") ?? "").split(",");
  const chosen = runs.filter((run) => asked.includes(run.id)).slice(0, MOST);
  const curves = useCurves(chosen.map((run) => run.id));
  const toggle = (id: string, on: boolean): void => {
    const next = on ? [...chosen.map((run) => run.id), id] : chosen.map((run) => run.id).filter((one) => one !== id);
    go(changed({ runs: next.slice(-MOST).join(",") }), true);
  };
  return (
    <div class="panels">
      <Chart runs={chosen} curves={curves} />
      <Panel title="Runs" wide more={<span class="panel-note">up to {MOST}</span>}>
        <ul class="overlay-runs">
          {runs.map((run) => (
            <li key={run.id}>
              <input type="checkbox" aria-label={`Show ${run.name}`} checked={chosen.includes(run)} onChange={(event) => toggle(run.id, event.currentTarget.checked)} />
              <Link to={link(run.id)}><Line value={run.name} /></Link><State value={run.state} />
            </li>
          ))}
        </ul>
      </Panel>
    </div>
  );
}

function Chart({ runs, curves }: { runs: Source[]; curves: Record<string, Curve> }): JSX.Element {
  const { query } = usePlace();
  const known = runs.filter((run) => curves[run.id]?.steps.length);
  const names = [...new Set(known.flatMap((run) => Object.keys(curves[run.id]?.series ?? {})))].sort();
  const wanted = query.get("metric");
  const name = wanted && names.includes(wanted) ? wanted : (FIRST.find((one) => names.includes(one)) ?? names[0]);
  const longest = Math.max(0, ...known.map((run) => curves[run.id]?.steps.length ?? 0));
  const window = useSmoothing(longest);
  const hours = query.get("x") === "hours";
  if (name === undefined) {
    return <Panel title="Curves" wide><Empty title={runs.length ? "No step finished yet." : "Select runs below to see their curves in one chart."} /></Panel>;
  }
  const shown: Run[] = known.map((run) => {
    const curve = curves[run.id];
    return { id: run.id, name: run.name, places: (hours ? elapsed(curve) : curve?.steps) ?? [], values: curve?.series[name] ?? curve?.steps.map(() => null) ?? [] };
  });
  return (
    <Panel title="Curves" wide more={(
      <span class="chart-choices">
        <Smoothing steps={longest} />
        <label class="panel-note">over{" "}
          <select value={hours ? "hours" : ""} onChange={(event) => go(changed({ x: event.currentTarget.value }), true)}>
            <option value="">steps</option><option value="hours">hours</option>
          </select>
        </label>
        <label class="panel-note">metric{" "}
          <select value={name} onChange={(event) => go(changed({ metric: event.currentTarget.value }), true)}>
            {names.map((one) => <option key={one} value={one}>{one}</option>)}
          </select>
        </label>
      </span>
    )}>
      <p class="line-title"><Name value={name} /></p>
      <OverlayChart runs={shown} name={name} unit={hours ? "hour" : "step"} window={window} />
    </Panel>
  );
}

/** Hours since the first step of a run. */
function elapsed(curve: Curve | undefined): number[] {
  const start = curve?.times.find((time) => time !== null) ?? 0;
  return curve?.times.map((time, n) => (time === null ? n : (time - start) / 3600)) ?? [];
}

function useCurves(ids: string[]): Record<string, Curve> {
  const [curves, setCurves] = useState<Record<string, Curve>>({});
  const key = ids.join(",");
  useEffect(() => {
    const abort = new AbortController();
    for (const id of ids.filter((one) => !(one in curves))) {
      ask<Curve>(address(id, "curve"), abort.signal)
        .then((curve) => setCurves((old) => ({ ...old, [id]: curve })))
        .catch(() => undefined);
    }
    return () => abort.abort();
  }, [key]);
  return curves;
}
