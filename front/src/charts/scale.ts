// From values to places on a chart, and which values stand at its axis.
import { useEffect, useRef, useState } from "preact/hooks";
import type { RefObject } from "preact";

export type Scale = (value: number) => number;

export function linear(from: [number, number], to: [number, number]): Scale {
  const span = from[1] - from[0] || 1;
  return (value) => to[0] + ((value - from[0]) / span) * (to[1] - to[0]);
}

/** About `wanted` round values that lie in the range. */
export function ticks(low: number, high: number, wanted: number): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 2.5, 5, 10].find((one) => one * power >= raw) ?? 10) * power;
  const found: number[] = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(Number((n * step).toPrecision(12)));
  return found;
}

/** The range of the values with some air, and with 0 or 1 in it where they are near. */
export function extent(values: (number | null)[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high) || 1];
  const span = high - low;
  if (low > 0 && low < span) low = 0;
  if (high < 1 && high > 1 - 0.4 * span) high = 1;
  const air = 0.04 * (high - low);
  return [low === 0 ? 0 : low - air, high === 1 ? 1 : high + air];
}

/** Means of `many` buckets at most, so that a long run draws as fast as a short one. */
export function thinned(steps: number[], values: (number | null)[], many = 400): { steps: number[]; values: (number | null)[] } {
  if (steps.length <= many) return { steps, values };
  const size = steps.length / many;
  const out = { steps: [] as number[], values: [] as (number | null)[] };
  for (let n = 0; n < many; n += 1) {
    const [from, to] = [Math.floor(n * size), Math.floor((n + 1) * size)];
    out.steps.push(mean(steps.slice(from, to)) ?? 0);
    out.values.push(mean(values.slice(from, to)));
  }
  return out;
}

/** The running mean over a window that ends at each step. */
export function smoothed(values: (number | null)[], window: number): (number | null)[] {
  return values.map((value, n) => (value === null ? null : mean(values.slice(Math.max(0, n - window + 1), n + 1))));
}

export function lastKnown(values: (number | null)[]): number | null {
  for (let n = values.length - 1; n >= 0; n -= 1) if (values[n] !== null) return n;
  return null;
}

export function mean(values: (number | null)[]): number | null {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value));
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

/** The width that an element has now. */
export function useWidth<E extends Element>(): [RefObject<E>, number] {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
