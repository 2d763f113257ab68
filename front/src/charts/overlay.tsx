// One metric of several runs in one chart, a colour each.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Series } from "../api";
import { number } from "../format";
import { Name } from "../parts/text";
import { closest, path } from "./line";
import { extent, lastKnown, linear, smoothed, thinned, ticks, useWidth } from "./scale";

export interface Run { id: string; name: string; places: number[]; values: Series }

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [340, 44, 12, 8, 24];

export function OverlayChart({ runs, name, unit, window }: { runs: Run[]; name: string; unit: string; window: number }): JSX.Element {
  const [box, width] = useWidth<HTMLDivElement>();
  const [at, setAt] = useState<number | null>(null);
  const last = Math.max(1, ...runs.map((run) => run.places.at(-1) ?? 0));
  const first = Math.min(last, ...runs.map((run) => run.places[0] ?? last));
  const range = extent(runs.flatMap((run) => run.values));
  const x = linear([first, last], [LEFT, width - RIGHT]);
  const y = linear(range, [HEIGHT - BOTTOM, TOP]);
  const move = (event: PointerEvent): void => setAt(linear([LEFT, width - RIGHT], [first, last])(event.offsetX));
  const keys = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    setAt((old) => Math.max(first, Math.min(last, (old ?? (by > 0 ? first : last)) + (by * (last - first)) / 100)));
  };
  const lines = runs.map((run) => ({ run, values: window > 1 ? smoothed(run.values, window) : run.values }));
  return (
    <figure class="line overlay">
      <div ref={box} class="chart" style={{ height: `${HEIGHT}px` }}>
        {width > 0 && (
          <svg width={width} height={HEIGHT} role="img" tabIndex={0} aria-label={`${name} of ${runs.map((run) => run.name).join(", ")}`}
            onPointerMove={move} onPointerLeave={() => setAt(null)} onKeyDown={keys} onBlur={() => setAt(null)}>
            {ticks(range[0], range[1], 5).map((tick) => (
              <g key={tick}>
                <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} />
                <text class="tick" x={LEFT - 6} y={y(tick)} dy="0.32em" text-anchor="end">{number(tick)}</text>
              </g>
            ))}
            {ticks(first, last, 8).map((tick) => <text key={tick} class="tick" x={x(tick)} y={HEIGHT - 4} text-anchor="middle">{number(tick)}</text>)}
            {lines.map(({ run, values }, n) => (
              <g key={run.id} class={`hue-${n}`}>
                {window > 1 && <path class="curve raw" d={drawn(run.places, run.values, x, y)} />}
                <path class="curve" d={drawn(run.places, values, x, y)} />
              </g>
            ))}
            {at !== null && <line class="cross" x1={x(at)} x2={x(at)} y1={TOP} y2={HEIGHT - BOTTOM} />}
          </svg>
        )}
      </div>
      <ul class="overlay-legend" aria-label="Runs in this chart">
        {lines.map(({ run, values }, n) => {
          const place = at === null ? lastKnown(values) : closest(run.places, at);
          return (
            <li key={run.id} class={`hue-${n}`}>
              <i aria-hidden="true" /><Name value={run.name} />
              <b class="number">{place === null ? "–" : number(values[place])}</b>
              <span class="muted number">{place === null ? "no values" : `${unit} ${number(run.places[place])}`}</span>
            </li>
          );
        })}
      </ul>
    </figure>
  );
}

function drawn(places: number[], values: Series, x: (v: number) => number, y: (v: number) => number): string {
  return path(thinned(places, values), x, y);
}
