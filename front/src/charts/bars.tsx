// Counts: a histogram of scores, and named counts as a list of bars that lead to what they count.
import type { JSX } from "preact";
import type { Histogram as Data } from "../api";
import { count, number, score, share } from "../format";
import { go, href, Link } from "../route";
import { Name } from "../parts/text";
import { linear, useWidth } from "./scale";

export function Histogram({ data, mean, to }: { data: Data; mean: number | null; to: (low: number, high: number) => string }): JSX.Element {
  const [box, width] = useWidth<HTMLDivElement>();
  const [height, bottom, top] = [150, 20, 16];
  const [low, high] = [data.edges[0] ?? 0, data.edges.at(-1) ?? 1];
  const most = Math.max(1, ...data.counts);
  const total = data.counts.reduce((sum, one) => sum + one, 0);
  const x = linear([low, high], [1, width - 1]);
  const y = linear([0, most], [height - bottom, top]);
  return (
    <div ref={box} class="chart" style={{ height: `${height}px` }}>
      {width > 0 && (
        <svg width={width} height={height} role="group" aria-label={`Rewards of ${count(total)} rollouts, mean ${score(mean)}`}>
          <line class="axis" x1="0" x2={width} y1={height - bottom + 0.5} y2={height - bottom + 0.5} />
          {data.counts.map((many, n) => {
            const [from, until] = [data.edges[n] ?? 0, data.edges[n + 1] ?? 0];
            const label = `${number(from)} to ${number(until)}: ${count(many)} (${share(many, total)})`;
            return many > 0 && (
              <a key={n} href={href(to(from, until))} aria-label={label} onClick={(event) => follow(event, to(from, until))}>
                <title>{label}</title>
                <rect class="hit" x={x(from)} y={top} width={Math.max(1, x(until) - x(from))} height={height - bottom - top} />
                <rect class="column" x={x(from) + 1} y={Math.min(y(many), height - bottom - 1.5)} width={Math.max(1, x(until) - x(from) - 2)}
                  height={Math.max(1.5, height - bottom - y(many))} rx="1.5" />
              </a>
            );
          })}
          {mean !== null && mean >= low && mean <= high && (
            <g>
              <line class="mean" x1={x(mean)} x2={x(mean)} y1={top - 2} y2={height - bottom} />
              <text class="tick" x={Math.max(28, Math.min(width - 28, x(mean)))} y={top - 5} text-anchor="middle">mean {score(mean)}</text>
            </g>
          )}
          <text class="tick" x="0" y={height - 5}>{number(low)}</text>
          <text class="tick" x={width} y={height - 5} text-anchor="end">{number(high)}</text>
        </svg>
      )}
    </div>
  );
}

export interface Bar { name: string; count: number; part?: number; to?: string; note?: string; bad?: boolean }

const FIRST = 7;

export function Bars({ bars, total }: { bars: Bar[]; total?: number }): JSX.Element {
  const most = Math.max(1, ...bars.map((bar) => bar.count));
  const rest = bars.slice(FIRST);
  return (
    <>
      <Some bars={bars.slice(0, FIRST)} most={most} total={total} />
      {rest.length > 0 && <details class="rest"><summary>{count(rest.length)} more</summary><Some bars={rest} most={most} total={total} /></details>}
    </>
  );
}

function Some({ bars, most, total }: { bars: Bar[]; most: number; total: number | undefined }): JSX.Element {
  return (
    <ul class="bars">
      {bars.map((bar) => (
        <li key={bar.name}>
          <span class="bar-name">{bar.to ? <Link to={bar.to}><Name value={bar.name} /></Link> : <Name value={bar.name} />}</span>
          <span class="bar-track" aria-hidden="true">
            <i class={bar.bad ? "bad" : undefined} style={{ width: `${(100 * bar.count) / most}%` }} />
            {bar.part ? <i class="bad over" style={{ width: `${(100 * bar.part) / most}%` }} /> : null}
          </span>
          <span class="number bar-count">{count(bar.count)}</span>
          <span class="bar-note">{bar.note ?? (total ? share(bar.count, total) : "")}</span>
        </li>
      ))}
    </ul>
  );
}

function follow(event: MouseEvent, to: string): void {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(to);
}
