// One metric over the steps of a run: the line is a running mean over `window` steps, and the dots are the steps.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Series } from "../api";
import { number } from "../format";
import { extent, lastKnown, linear, smoothed, thinned, ticks, useWidth } from "./scale";

interface Props {
  name: string; steps: number[]; values: Series; band?: { low: Series; high: Series } | undefined; height?: number; small?: boolean; total?: number | null;
  window?: number; onStep?: (step: number) => void;
}

export function Line({ name, steps, values, band, height = 260, small, total, window = 1, onStep }: Props): JSX.Element {
  const [box, width] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const left = small ? 40 : 44;
  const [right, top, bottom] = [small ? 8 : 12, 8, small ? 18 : 24];
  const range = extent(band ? [...values, ...band.low, ...band.high] : values);
  const x = linear([steps[0] ?? 0, Math.max(steps.at(-1) ?? 1, small ? 0 : (total ?? 0))], [left, width - right]);
  const y = linear(range, [height - bottom, top]);
  const smooth = window > 1;
  const line = thinned(steps, smooth ? smoothed(values, window) : values);
  const nearest = at === null ? null : closest(steps, at);
  const move = (event: PointerEvent): void => {
    const place = event.offsetX;
    setAt(linear([left, width - right], [x0(steps), Math.max(steps.at(-1) ?? 1, small ? 0 : (total ?? 0))])(place));
  };
  const keys = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && nearest !== null) onStep?.(steps[nearest] ?? 0);
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    const next = nearest === null ? steps.length - 1 : Math.max(0, Math.min(steps.length - 1, nearest + by));
    setAt(steps[next] ?? null);
  };
  const chosen = nearest ?? lastKnown(values);
  return (
    <figure class={small ? "line small" : "line"}>
      <figcaption>
        <span class="line-name">{name}</span>
        <span class="number line-value">{chosen === null ? "–" : number(values[chosen])}</span>
        <span class="line-step">{nearest !== null ? `step ${steps[nearest]}` : small ? "" : "latest"}</span>
      </figcaption>
      <div ref={box} class="chart" style={{ height: `${height}px` }}>
        {width > 0 && (
          <svg width={width} height={height} role="img" class={onStep ? "clickable" : undefined} tabIndex={0} aria-label={summary(name, steps, values)}
            onClick={() => nearest !== null && onStep?.(steps[nearest] ?? 0)} onPointerMove={move} onPointerLeave={() => setAt(null)} onKeyDown={keys} onBlur={() => setAt(null)}>
            {ticks(range[0], range[1], small ? 2 : 4).map((tick) => (
              <g key={tick}>
                <line class="grid" x1={left} x2={width - right} y1={y(tick)} y2={y(tick)} />
                <text class="tick" x={left - 6} y={y(tick)} dy="0.32em" text-anchor="end">{number(tick)}</text>
              </g>
            ))}
            {ticks(steps[0] ?? 0, Math.max(steps.at(-1) ?? 1, small ? 0 : (total ?? 0)), small ? 3 : 8).filter(Number.isInteger).map((tick) => (
              <text key={tick} class="tick" x={x(tick)} y={height - 4} text-anchor="middle">{tick}</text>
            ))}
            {band && <path class="band" d={area(thinned(steps, band.low), thinned(steps, band.high), x, y)} />}
            {smooth && !small && steps.length <= 600 && values.map((value, n) => value !== null && <circle key={n} class="dot" r="1.5" cx={x(steps[n] ?? 0)} cy={y(value)} />)}
            <path class="curve" d={path(line, x, y)} />
            {steps.length === 1 && values[0] !== null && <circle class="point" r="3" cx={x(steps[0] ?? 0)} cy={y(values[0] ?? 0)} />}
            {nearest !== null && (
              <g>
                <line class="cross" x1={x(steps[nearest] ?? 0)} x2={x(steps[nearest] ?? 0)} y1={top} y2={height - bottom} />
                {values[nearest] !== null && values[nearest] !== undefined && <circle class="point" r="3.5" cx={x(steps[nearest] ?? 0)} cy={y(values[nearest] ?? 0)} />}
              </g>
            )}
          </svg>
        )}
      </div>
    </figure>
  );
}

type Points = { steps: number[]; values: Series };

export function path(points: Points, x: (v: number) => number, y: (v: number) => number): string {
  let [drawn, pen] = ["", false];
  points.steps.forEach((step, n) => {
    const value = points.values[n];
    if (value === null || value === undefined) {
      pen = false;
      return;
    }
    // A value between two gaps has no line: one of no length, with round ends, is a dot.
    drawn += pen ? `L${x(step).toFixed(1)} ${y(value).toFixed(1)}` : `M${x(step).toFixed(1)} ${y(value).toFixed(1)}h0`;
    pen = true;
  });
  return drawn;
}

function area(low: Points, high: Points, x: (v: number) => number, y: (v: number) => number): string {
  const known = low.steps.map((_, n) => n).filter((n) => low.values[n] != null && high.values[n] != null);
  if (known.length < 2) return "";
  const up = known.map((n) => `${x(low.steps[n] ?? 0).toFixed(1)} ${y(high.values[n] ?? 0).toFixed(1)}`);
  const down = known.reverse().map((n) => `${x(low.steps[n] ?? 0).toFixed(1)} ${y(low.values[n] ?? 0).toFixed(1)}`);
  return `M${[...up, ...down].join("L")}Z`;
}

export function closest(steps: number[], at: number): number | null {
  if (!steps.length) return null;
  let best = 0;
  steps.forEach((step, n) => {
    if (Math.abs(step - at) < Math.abs((steps[best] ?? 0) - at)) best = n;
  });
  return best;
}

function x0(steps: number[]): number {
  return steps[0] ?? 0;
}

function summary(name: string, steps: number[], values: Series): string {
  const last = lastKnown(values);
  const first = values.findIndex((value) => value !== null);
  if (last === null) return `${name}: no values`;
  return `${name}: ${number(values[first])} at step ${steps[first]}, ${number(values[last])} at step ${steps[last]}. Use the arrow keys to read single steps.`;
}
