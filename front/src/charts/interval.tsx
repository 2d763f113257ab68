// A value with the range it can be trusted to, on a common axis: rows of them make a table that is read at a glance.
import type { JSX } from "preact";
import { decimals, score } from "../format";
import { linear } from "./scale";

interface Props { value: number | null; low: number | null; high: number | null; range: [number, number]; zero?: boolean; muted?: boolean }
const WIDTH = 200;

export function Whisker({ value, low, high, range, zero, muted }: Props): JSX.Element | null {
  if (value === null) return null;
  const x = linear(range, [6, WIDTH - 6]);
  const digits = decimals(low, high);
  const label = low === null || high === null ? score(value) : `${score(value, digits)}, from ${score(low, digits)} to ${score(high, digits)}`;
  return (
    <svg class={muted ? "whisker muted" : "whisker"} viewBox={`0 0 ${WIDTH} 18`} width={WIDTH} height="18" role="img" aria-label={label}>
      <line class="axis" x1="0" x2={WIDTH} y1="9" y2="9" />
      {zero && <line class="null" x1={x(0)} x2={x(0)} y1="1" y2="17" />}
      {low !== null && high !== null && <rect class="reach" x={x(low)} y="6" width={Math.max(1, x(high) - x(low))} height="6" rx="3" />}
      <circle class="value" cx={x(value)} cy="9" r="3.5" />
    </svg>
  );
}

/** One range for all, that holds 0 and, for shares, 1. */
export function common(values: (number | null)[], around = false): [number, number] {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (!known.length) return [0, 1];
  if (around) {
    const far = Math.max(0.05, ...known.map(Math.abs));
    return [-far, far];
  }
  return [Math.min(0, ...known), Math.max(1, ...known)];
}

/** The interval as text. */
export function interval(low: number | null, high: number | null): JSX.Element {
  const digits = decimals(low, high);
  return <span class="number interval">[{score(low, digits)}, {score(high, digits)}]</span>;
}
