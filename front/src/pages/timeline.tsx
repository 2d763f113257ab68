// Where a rollout's time went: calls to the model, tools, the verifier and the sandbox, and waiting.
import type { JSX } from "preact";
import type { Rollout } from "../api";
import { linear, ticks, useWidth } from "../charts/scale";
import { seconds, share } from "../format";
import { Empty } from "../parts/states";
import { Name } from "../parts/text";

export interface Span { span: string; name: string; start: number; seconds: number }

const LANES = ["model", "tool", "sandbox", "verifier", "waiting"];
const SHOWN = 500;

export function Timeline({ rollout }: { rollout: Rollout }): JSX.Element {
  const timings: Span[] = rollout.timings.map((one) => ({ ...one, start: one.start ?? 0, seconds: one.seconds ?? 0, span: laneOf(one.span) }));
  const whole = Math.max(rollout.seconds ?? 0, ...timings.map((one) => one.start + one.seconds), 0.001);
  if (!timings.length) return <Empty title="No timings recorded." />;
  const spans = [...timings, ...waiting(timings, whole)];
  const sums = LANES.map((lane) => [lane, sum(spans.filter((one) => one.span === lane))] as const);
  return (
    <div class="timeline">
      <ul class="shares">
        {sums.map(([lane, time]) => (
          <li key={lane}><i class={`lane-${lane}`} aria-hidden="true" />{lane} <b class="number">{seconds(time)}</b> <span class="muted number">{share(time, whole)}</span></li>
        ))}
      </ul>
      <Lanes spans={spans} whole={whole} />
      <div class="scroll" tabIndex={0} role="region" aria-label="Calls, table">
        <table class="tight">
          <thead><tr><th>Call</th><th>Kind</th><th class="right">Start</th><th class="right">Duration</th><th aria-hidden="true" class="bar-cell" /></tr></thead>
          <tbody>
            {[...timings].sort((a, b) => a.start - b.start).slice(0, SHOWN).map((one, n) => (
              <tr key={n}>
                <th scope="row"><Name value={one.name || one.span} /></th>
                <td><span class="lane-name"><i class={`lane-${one.span}`} aria-hidden="true" />{one.span}</span></td>
                <td class="right number muted">{seconds(one.start)}</td>
                <td class="right number">{seconds(one.seconds)}</td>
                <td class="bar-cell" aria-hidden="true">
                  <span class="span-track"><i class={`lane-${one.span}`} style={{ left: `${(100 * one.start) / whole}%`, width: `${Math.max(0.3, (100 * one.seconds) / whole)}%` }} /></span>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {timings.length > SHOWN && <p class="note">Showing the first {SHOWN} calls; the record has all.</p>}
    </div>
  );
}

function Lanes({ spans, whole }: { spans: Span[]; whole: number }): JSX.Element {
  const [box, width] = useWidth<HTMLDivElement>();
  const [left, row, bottom] = [76, 22, 22];
  const height = LANES.length * row + bottom;
  const x = linear([0, whole], [left, width - 12]);
  return (
    <div ref={box} class="chart" style={{ height: `${height}px` }}>
      {width > 0 && (
        <svg width={width} height={height} role="img" aria-label={`Timeline of ${seconds(whole)}`}>
          {ticks(0, whole, 8).map((tick) => (
            <g key={tick}>
              <line class="grid" x1={x(tick)} x2={x(tick)} y1="0" y2={height - bottom} />
              <text class="tick" x={x(tick)} y={height - 6} text-anchor="middle">{seconds(tick)}</text>
            </g>
          ))}
          {LANES.map((lane, n) => (
            <g key={lane}>
              <text class="tick lane-label" x={left - 10} y={n * row + row / 2} dy="0.32em" text-anchor="end">{lane}</text>
              {spans.filter((one) => one.span === lane).map((one, k) => (
                <rect key={k} class={`lane-${lane}`} x={x(one.start)} y={n * row + 4} width={Math.max(1.2, x(one.start + one.seconds) - x(one.start))} height={row - 8} rx="2" />
              ))}
            </g>
          ))}
        </svg>
      )}
    </div>
  );
}

/** The parts of the whole in which nothing was called. */
export function waiting(timings: Span[], whole: number): Span[] {
  const found: Span[] = [];
  let until = 0;
  for (const one of [...timings].sort((a, b) => a.start - b.start)) {
    if (one.start - until > 1e-4) found.push({ span: "waiting", name: "waiting", start: until, seconds: one.start - until });
    until = Math.max(until, one.start + one.seconds);
  }
  if (whole - until > 1e-4) found.push({ span: "waiting", name: "waiting", start: until, seconds: whole - until });
  return found;
}

function laneOf(span: string): string {
  return LANES.find((lane) => span === lane || span.startsWith(lane)) ?? "tool";
}

function sum(spans: Span[]): number {
  return spans.reduce((all, one) => all + one.seconds, 0);
}
