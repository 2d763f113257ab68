// The exact tokens of a rollout: which were sampled, how likely each was, and which policy version sampled it.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { address, useApi, withQuery } from "../api";
import type { Rollout, Tokens as Data } from "../api";
import { count, number } from "../format";
import { useKeys } from "../keys";
import { pieces } from "../odd";
import { Empty, Given } from "../parts/states";
import { Name } from "../parts/text";
import { changed, go, usePlace } from "../route";

const AT_ONCE = 1000;
const SHADES = 7;
type Paint = "logprob" | "mask" | "version";

export function TokenView({ source, rollout }: { source: string; rollout: Rollout }): JSX.Element {
  const { query } = usePlace();
  const sequence = Math.max(0, Math.min(rollout.sequences.length - 1, Number(query.get("sequence") ?? 0) || 0));
  const from = Math.max(0, Number(query.get("from") ?? 0) || 0);
  const chosen = query.get("paint");
  const paint: Paint = chosen === "mask" || chosen === "version" ? chosen : "logprob";
  const path = withQuery(`${address(source, "rollouts", rollout.id)}/tokens`, { sequence, from, limit: AT_ONCE });
  const answer = useApi<Data>(rollout.sequences.length ? path : null);
  const of = rollout.sequences[sequence];
  const turn = (to: number): void => go(changed({ from: to > 0 ? to : null }));
  useKeys({
    n: () => answer.data?.next != null && turn(answer.data.next),
    p: () => from > 0 && turn(from - AT_ONCE),
  });
  if (!of) return <Empty title="No tokens recorded."><p>Chat APIs return text only. Use an endpoint that returns token ids to record them.</p></Empty>;
  return (
    <div class="tokens">
      <div class="filters">
        {rollout.sequences.length > 1 && (
          <label><span>Sequence</span>
            <select value={sequence} onChange={(event) => go(changed({ sequence: event.currentTarget.value, from: null }))}>
              {rollout.sequences.map((one, n) => <option key={n} value={n}>{`${n + 1} of ${rollout.sequences.length} · ${count(one.tokens)} tokens`}</option>)}
            </select>
          </label>
        )}
        <label><span>Color by</span>
          <select value={paint} onChange={(event) => go(changed({ paint: event.currentTarget.value === "logprob" ? null : event.currentTarget.value }), true)}>
            <option value="logprob">log probability</option><option value="mask">sampled or not (mask)</option><option value="version">policy version</option>
          </select>
        </label>
        <Legend paint={paint} />
        <span class="grow" />
        <span class="muted number">{count(of.sampled)} sampled of {count(of.tokens)}{of.versions && of.versions[0] !== null && ` · version ${of.versions[0] === of.versions[1] ? of.versions[0] : of.versions.join("–")}`}</span>
      </div>
      <Given answer={answer}>
        {(data) => (
          <>
            {data.pieces === null && <p class="note">No tokenizer found, so tokens are shown as ids. Pass one with `hermes-rl view --tokenizer PATH`.</p>}
            <Strip data={data} from={from} paint={paint} />
            <div class="pages">
              <span class="number">{count(Math.min(from + 1, data.total))} – {count(from + data.ids.length)} of {count(data.total)} tokens</span>
              {data.next === null && from + data.ids.length < data.total && <span class="muted">The rest is not included in this report.</span>}
              {(from > 0 || data.next !== null) && (
                <span class="pages-buttons">
                  <button type="button" disabled={from === 0} onClick={() => turn(from - AT_ONCE)}>Previous</button>
                  <button type="button" disabled={data.next === null} onClick={() => data.next !== null && turn(data.next)}>Next</button>
                </span>
              )}
            </div>
          </>
        )}
      </Given>
    </div>
  );
}

function Strip({ data, from, paint }: { data: Data; from: number; paint: Paint }): JSX.Element {
  const [at, setAt] = useState<number | null>(null);
  useEffect(() => setAt(null), [data]);
  const pointed = (event: Event): void => {
    const found = (event.target as HTMLElement).closest<HTMLElement>("[data-n]");
    if (found) setAt(Number(found.dataset["n"]));
  };
  const move = (event: KeyboardEvent): void => {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    setAt((old) => Math.max(0, Math.min(data.ids.length - 1, old === null ? 0 : old + by)));
  };
  const known = [...new Set(data.versions.filter((version): version is number => version !== null))].sort((a, b) => a - b);
  let last: number | null = null;
  return (
    <>
      <div class="strip foreign mono" role="group" tabIndex={0} aria-label="Tokens. Use the arrow keys to read them one by one." onPointerOver={pointed} onClick={pointed} onKeyDown={move}>
        {data.ids.map((id, n) => {
          const version = data.versions[n] ?? null;
          const begins = version !== null && version !== last;
          if (version !== null) last = version;
          return (
            <>
              {begins && <span key={`v${n}`} class="version">v{version}</span>}
              <span key={n} data-n={n} class={`token ${shade(data, n, paint, known)}${at === n ? " at" : ""}`}>{data.pieces ? shown(data.pieces[n] ?? "") : `${id} `}</span>
            </>
          );
        })}
      </div>
      <p class="token-facts" role="status">{at === null ? <span class="muted">Hover over a token, or use the arrow keys.</span> : <Facts data={data} n={at} from={from} />}</p>
    </>
  );
}

function Facts({ data, n, from }: { data: Data; n: number; from: number }): JSX.Element {
  const logprob = data.logprobs[n] ?? null;
  const piece = data.pieces?.[n];
  return (
    <>
      <span>position <b class="number">{count(from + n)}</b></span>
      <span>id <b class="number">{data.ids[n]}</b></span>
      {piece !== undefined && <span>text <b><Name value={JSON.stringify(piece)} /></b></span>}
      <span>{data.mask[n] ? <b>sampled</b> : "not sampled"}</span>
      {logprob !== null && <span>logprob <b class="number">{number(logprob)}</b></span>}
      {logprob !== null && <span>probability <b class="number">{number(Math.exp(logprob))}</b></span>}
      {data.versions[n] != null && <span>version <b class="number">{data.versions[n]}</b></span>}
    </>
  );
}

function Legend({ paint }: { paint: Paint }): JSX.Element {
  if (paint === "logprob") return <span class="legend"><span>likely</span>{Array.from({ length: SHADES }, (_, n) => <i key={n} class={`h${n}`} />)}<span>unlikely</span></span>;
  if (paint === "mask") return <span class="legend"><i class="m1" /> sampled <i class="given" /> not sampled</span>;
  return <span class="legend">labels mark where the policy version changes</span>;
}

/** Seven shades from sure (probability near 1) to unlikely (below e⁻⁵). */
export function heat(logprob: number): number {
  return Math.max(0, Math.min(SHADES - 1, Math.round((-logprob / 5) ** 0.6 * (SHADES - 1))));
}

function shade(data: Data, n: number, paint: Paint, known: number[]): string {
  if (!data.mask[n]) return "given";
  if (paint === "mask") return "m1";
  if (paint === "version") return `w${known.indexOf(data.versions[n] ?? -1) % 4}`;
  const logprob = data.logprobs[n];
  return logprob === null || logprob === undefined ? "m1" : `h${heat(logprob)}`;
}

function shown(piece: string): string {
  return pieces(piece).map((part) => part.text).join("").replaceAll("\n", "⏎\n");
}
