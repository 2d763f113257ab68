// Answers inside the page: a report in one HTML file has them in `<script type="application/json" id="answers">` and no server.
// Always true: when there are any, nothing is asked over the network and the place is kept in location.hash.
import { Problem } from "./problem";
import { patterns } from "./words";

/** What a report says of itself. */
export interface About { note: string | null; start: string; compare: boolean; runs: number }
export interface Embedded { about: About; answer(path: string): unknown; text(path: string): string; has(path: string): boolean }

type Row = Record<string, unknown>;
type Answers = Record<string, unknown>;

const element = typeof document === "undefined" ? null : document.getElementById("answers");

export const embedded: Embedded | null = element ? answersOf(element.textContent ?? "{}") : null;

export function answersOf(json: string): Embedded {
  const answers = JSON.parse(json) as Answers;
  const find = (path: string): unknown => {
    const found = answers[path];
    if (found === undefined) throw new Problem(404, "This is not included in the report.", "Open the source with `hermes-rl view`.");
    return found;
  };
  return {
    about: { note: null, start: "/", compare: false, runs: 0, ...(answers["report"] as Partial<About> | undefined) },
    has: (path) => path in answers,
    answer: (path) => answered(path, answers, find),
    text: (path) => {
      const found = find(path);
      return typeof found === "string" ? found : JSON.stringify(found);
    },
  };
}

/** Lists, conversations and tokens are held whole, as far as they are held at all; what the address asks of them is done on this side. */
function answered(path: string, answers: Answers, find: (path: string) => unknown): unknown {
  const [bare = path, text = ""] = path.split("?", 2);
  const query = new URLSearchParams(text);
  if (bare.endsWith("/messages")) return messages(find(bare) as { rows: Row[]; total: number }, query);
  if (bare.endsWith("/tokens")) return tokens(find(`${bare}?sequence=${query.get("sequence") ?? 0}`) as Row, query);
  if (/\/(rollouts|groups)$/.test(bare)) return listed(bare, find(bare) as { rows: Row[] }, query, answers);
  return find(path in answers ? path : bare);
}

function listed(path: string, held: { rows: Row[] }, query: URLSearchParams, answers: Answers): unknown {
  const limit = Number(query.get("limit") ?? 50);
  const from = Number(query.get("after") ?? 0);
  const words = patterns(query.get("q")).map((pattern) => new RegExp(pattern, "iu"));
  const kept = held.rows.filter((row) => keeps(row, query) && (!words.length || says(row, words, answers[`${path}/${String(row["id"])}/messages`])));
  const rows = sorted(kept, query.get("sort"));
  return { rows: rows.slice(from, from + limit), next: from + limit < rows.length ? String(from + limit) : null, total: rows.length };
}

function messages(held: { rows: Row[]; total: number }, query: URLSearchParams): unknown {
  const [from, limit] = [Number(query.get("from") ?? 0), Number(query.get("limit") ?? 50)];
  const rows = held.rows.slice(from, from + limit);
  return { ...held, rows, next: from + limit < held.rows.length ? from + limit : null };
}

function tokens(held: Row, query: URLSearchParams): unknown {
  const [from, limit] = [Number(query.get("from") ?? 0), Number(query.get("limit") ?? 1000)];
  const cut = Object.fromEntries(Object.entries(held).map(([name, value]) => [name, Array.isArray(value) ? value.slice(from, from + limit) : value]));
  return { ...cut, next: from + limit < (held["ids"] as unknown[]).length ? from + limit : null };
}

function keeps(row: Row, query: URLSearchParams): boolean {
  const score = row["score"];
  const [low, high] = [query.get("min_score"), query.get("max_score")];
  if ((low || high) && typeof score !== "number") return false;
  if (low && (score as number) < Number(low)) return false;
  if (high && (score as number) > Number(high)) return false;
  const stop = query.get("stop_reason");
  if (stop && row["stop_reason"] !== stop) return false;
  const step = query.get("step");
  if (step && (row["use"] as { step: number | null } | null)?.step !== Number(step)) return false;
  const failure = query.get("failure");
  if (failure && !(failure === "any" ? row["failure"] : failure === "none" ? !row["failure"] : row["failure"] === failure)) return false;
  const tool = query.get("tool");
  return !tool || ((row["tools"] as string[] | undefined)?.includes(tool) ?? false);
}

/** Whether all the words stand in the rollout, as far as the report holds it. */
function says(row: Row, words: RegExp[], conversation: unknown): boolean {
  const texts: string[] = [];
  collect([row["title"], row["item_id"], conversation], texts);
  return words.every((word) => texts.some((text) => word.test(text)));
}

function collect(value: unknown, into: string[]): void {
  if (typeof value === "string") into.push(value);
  else if (typeof value === "object" && value !== null) Object.values(value).forEach((one) => collect(one, into));
}

const COLUMNS: Record<string, string> = { tokens: "completion_tokens" };

function sorted(rows: Row[], sort: string | null): Row[] {
  if (!sort) return rows;
  if (sort === "-n") return [...rows].reverse();
  const [bare, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  const name = COLUMNS[bare] ?? bare;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[name], b[name]];
    if (x === y) return 0;
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : 1) * sign;
  });
}
