// How many steps a line averages: a slider whose value the address keeps.
import type { JSX } from "preact";
import { many } from "../format";
import { changed, go, usePlace } from "../route";

const SMOOTH_FROM = 40;

/** The number of steps in the running mean: what was chosen, else 1 for a short run and a twentieth of a long one. */
export function useSmoothing(steps: number): number {
  const chosen = Number(usePlace().query.get("smooth") ?? NaN);
  if (Number.isInteger(chosen) && chosen >= 1) return Math.min(chosen, Math.max(1, steps));
  return steps >= SMOOTH_FROM ? Math.max(3, Math.round(steps / 20)) : 1;
}

export function Smoothing({ steps }: { steps: number }): JSX.Element | null {
  const value = useSmoothing(steps);
  const most = Math.max(2, Math.round(steps / 4));
  if (steps < 3) return null;
  return (
    <label class="panel-note smoothing">smoothing{" "}
      <input type="range" min={1} max={most} value={Math.min(value, most)} aria-valuetext={shown(value)}
        onInput={(event) => go(changed({ smooth: event.currentTarget.value }), true)} />
      <output class="number">{shown(value)}</output>
    </label>
  );
}

function shown(value: number): string {
  return value === 1 ? "off" : `mean of ${many(value, "step")}`;
}
