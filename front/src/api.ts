// What the server answers, and how it is asked. Types follow the JSON API of hermes_rl.viewer.
// Always true: every string in an answer is untrusted and is only ever shown through parts/text.tsx or as a text node.
import { useEffect, useRef, useState } from "preact/hooks";
import { embedded } from "./embedded";
import { Problem } from "./problem";

export type Kind = "run" | "groups" | "evaluation" | "database";

export interface Source {
  id: string; kind: Kind; name: string; state: string | null; environment: string | null; model: string | null;
  groups: number | null; rollouts: number | null; reward_mean: number | null; updated_at: string | null;
  indexing: { done_bytes: number; total_bytes: number } | null; problem: string | null;
}
export interface Home { version: string; sources: Source[] }
export interface Histogram { edges: number[]; counts: number[] }
export interface ToolCount { name: string; calls: number; errors: number }
export interface SourceDetail extends Source {
  counts: { groups: number; rollouts: number; scored: number; failed: number; withheld: number; broken?: number };
  broken?: { line: number; why: string }[];
  reward: { mean: number | null; low: number | null; high: number | null; histogram: Histogram | null };
  failures: { cause: string; count: number }[];
  stop_reasons: { reason: string; count: number }[];
  tools: ToolCount[];
  config: Record<string, unknown> | null;
  provenance: Record<string, unknown> | null;
}
export type Series = (number | null)[];
export interface Curve { steps: number[]; times: Series; series: Record<string, Series>; bands: Record<string, { low: Series; high: Series }> }
export interface Live {
  state: string | null; reason: string | null; stalled?: string | null;
  parts: { name: string; state: string | null; restarts?: number | null; problem?: string | null }[];
  step: number | null; total_steps: number | null; tokens_per_second: number | null; groups_per_minute: number | null;
  staleness: number | null; queue: number | null; updated_at: string | number | null; minutes_left?: number | null; running_minutes?: number | null;
}
export interface Use { state: string; cause: string | null; batch: number | null; step: number | null }
export interface Logs { parts: string[]; part: string | null; text: string; lines: number }
export interface Command { what: string; line: string }
export interface Page<R> { rows: R[]; next: string | null; total: number | null; took_ms?: number }
export interface GroupRow {
  id: string; item_id: string; title: string | null; draw: number | null; created_at: string | null; scores: (number | null)[];
  mean: number | null; spread: number | null; failures: string[]; withheld: string | null; rollouts: number; use: Use | null;
}
export interface RolloutRow {
  id: string; group_id: string; index: number; item_id: string; title: string | null; score: number | null; failure: string | null;
  stop_reason: string | null; turns: number | null; tool_calls: number | null; tool_errors: number | null;
  completion_tokens: number | null; seconds: number | null; created_at: string | null; tools: string[];
  version: { low: number; high: number } | null; seat: string | null; snippet: string | null;
}
export interface Contrast { what: string; name: string; good: number | null; bad: number | null }
export interface Group {
  id: string; item_id: string; item: unknown; tools: unknown; withheld: string | null; provenance: Record<string, unknown> | null;
  rollouts: RolloutRow[]; contrast: Contrast[]; rollouts_total?: number;
  use: Use | null; advantages: Record<string, number>; advantage_rule: string;
}
export interface Timing { span: string; name: string; start: number | null; seconds: number | null }
export interface Rollout extends RolloutRow {
  components: Record<string, number | null>; turn_scores: (number | null)[] | null; usage: Record<string, number | null> | null; timings: Timing[];
  failure_message: string | null; messages: number;
  sequences: { tokens: number; sampled: number; versions: [number | null, number | null] | null }[];
  notes: { name: string; text: string; chars: number }[]; end_reason: string | null; step_reward: number | null;
  advantage: number | null; advantage_rule: string; use: Use | null;
  metadata: unknown; neighbours: { previous: string | null; next: string | null };
}
export interface Text { text: string; chars: number; cut: boolean }
export interface Message {
  n: number; role: string; reasoning: Text | null; content: Text | null;
  tool_calls: { id: string | null; name: string; arguments: Text }[];
  tool_call_id: string | null; name: string | null; error: boolean; sampled: boolean;
  turn: number; state: (Text & { changed: string[] }) | null; rewards: { turn: number; value: number; note: string }[];
}
export interface Messages { rows: Message[]; next: number | null; total?: number }
export interface TextPage { text: string; chars: number; next: number | null }
export interface Tokens {
  ids: number[]; pieces: string[] | null; mask: number[]; logprobs: (number | null)[]; versions: (number | null)[];
  total: number; next: number | null;
}
export interface Interval { value: number | null; low: number | null; high: number | null }
export interface Metric extends Interval { name: string }
export interface Metrics {
  metrics: Metric[]; samples: number | null; seconds: number | null; generation_parameters: Record<string, unknown> | null;
  finished_at: string | null; limit?: string | null;
}
export interface Comparison {
  a: Source; b: Source;
  metrics: {
    name: string; a: Interval; b: Interval; difference: number | null; low: number | null; high: number | null;
    significant: boolean; note: string | null;
  }[];
  items: { item_id: string; title: string | null; a: number | null; b: number | null }[];
  differences: { name: string; a: unknown; b: unknown; text: string }[];
  same: { name: string; value: unknown }[];
  remarks: string[];
}

export interface Answer<T> { data: T | null; problem: Problem | null; loading: boolean }

// So that going back shows a page at once. Small, as an answer can have hundreds of kilobytes.
const kept = new Map<string, unknown>();
const KEPT_ANSWERS = 40;

function keep(path: string, data: unknown): void {
  kept.delete(path);
  kept.set(path, data);
  const oldest = kept.keys().next();
  if (kept.size > KEPT_ANSWERS && !oldest.done) kept.delete(oldest.value);
}

export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  if (embedded) return embedded.answer(path) as T;
  let response: Response;
  try {
    response = await fetch(path, { ...(signal ? { signal } : {}), headers: { accept: "application/json" } });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "The viewer is not responding.", "Check that `hermes-rl view` is still running, then reload this page.");
  }
  if (!response.ok) throw await problemOf(response);
  return (await response.json()) as T;
}

export async function askText(path: string): Promise<string> {
  if (embedded) return embedded.text(path);
  const response = await fetch(path);
  if (!response.ok) throw await problemOf(response);
  return response.text();
}

/** The answer to a path, asked again when the path changes and, with `often`, each so many milliseconds while the page is seen. */
export function useApi<T>(path: string | null, often?: number | null): Answer<T> {
  const every = embedded ? null : often; // A report stays as it is.
  const [answer, setAnswer] = useState<Answer<T> & { path: string | null }>(() => first<T>(path));
  const latest = useRef(answer);
  latest.current = answer;
  useEffect(() => {
    if (latest.current.path !== path) {
      const known = first<T>(path);
      // What was there stays, dimmed, until the new answer comes: a list that is filtered does not flicker.
      setAnswer(known.data === null ? { ...known, data: latest.current.data } : known);
    }
    if (path === null) return;
    const abort = new AbortController();
    let timer = 0;
    const turn = async (): Promise<void> => {
      try {
        if (!(every && document.hidden)) {
          const data = await ask<T>(path, abort.signal);
          keep(path, data);
          setAnswer({ path, data, problem: null, loading: false });
        }
      } catch (error) {
        if (abort.signal.aborted) return;
        const problem = error instanceof Problem ? error : new Problem(0, String(error), null);
        setAnswer((old) => ({ path, data: every && old.path === path ? old.data : null, problem, loading: false }));
      }
      if (every && !abort.signal.aborted) timer = window.setTimeout(() => void turn(), every);
    };
    void turn();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [path, every]);
  if (answer.path === path) return answer;
  const known = first<T>(path);
  return known.data === null ? { ...known, data: answer.data } : known;
}

export function address(source: string, ...rest: string[]): string {
  return ["/api/s", encodeURIComponent(source), ...rest.map(encodeURIComponent)].join("/");
}

export function withQuery(path: string, query: Record<string, string | number | null | undefined>): string {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

function first<T>(path: string | null): Answer<T> & { path: string | null } {
  const data = path === null ? null : ((kept.get(path) as T | undefined) ?? null);
  return { path, data, problem: null, loading: path !== null && data === null };
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const body = (await response.json()) as { error?: { message?: string; next_step?: string } };
    return new Problem(response.status, body.error?.message ?? response.statusText, body.error?.next_step ?? null);
  } catch {
    return new Problem(response.status, `The viewer returned ${response.status} ${response.statusText}.`, null);
  }
}
