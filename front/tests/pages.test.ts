import { expect, test } from "vitest";
import { withQuery } from "../src/api";
import type { Message } from "../src/api";
import { path } from "../src/charts/line";
import { extent, smoothed, thinned, ticks } from "../src/charts/scale";
import { answersOf } from "../src/embedded";
import { ago, bytes, count, decimals, number, score, seconds, share } from "../src/format";
import { flattened, toolName } from "../src/parts/bits";
import { searched } from "../src/parts/text";
import { workedExamples } from "../src/pages/conversation";
import { waiting } from "../src/pages/timeline";
import { heat } from "../src/pages/tokens";
import { parse } from "../src/route";

test("what is unknown is a dash and never 0", () => {
  expect([count(null), number(null), score(null), seconds(null), ago(null), share(1, 0)]).toEqual(Array(6).fill("–"));
});

test("numbers are short", () => {
  expect([number(0.12345), number(12345.6), number(-0.5), number(0.00012)]).toEqual(["0.123", "12,346", "−0.5", "1.2e−4"]);
  expect([seconds(0.0123), seconds(12.34), seconds(125), seconds(7300)]).toEqual(["12 ms", "12.3 s", "2 min 05 s", "2 h 01 min"]);
  expect([bytes(999), bytes(1_020_000_000)]).toEqual(["999 B", "1.0 GB"]);
});

test("scores have the digits that Python prints", () => {
  expect([0.125, 0.375, 2.5, -0.125].map((value) => score(value, 2))).toEqual(["0.12", "0.38", "2.50", "−0.12"]);
  expect([score(0.0625), score(2.675, 2), score(2 / 7)]).toEqual(["0.062", "2.67", "0.286"]);
  expect([share(1, 8), decimals(0.1, 0.5), decimals(0.1, 0.11)]).toEqual(["12%", 3, 4]);
});

test("settings within settings have names with dots", () => {
  expect(flattened({ a: { b: 1, c: { d: [1] } }, e: {} })).toEqual([["a.b", 1], ["a.c.d", [1]], ["e", {}]]);
});

test("a tool's name shows its spaces", () => {
  expect([toolName("terminal"), toolName(" terminal"), toolName("")]).toEqual(["terminal", '" terminal"', '""']);
});

test("times are told from text and from seconds", () => {
  expect(ago("1970-01-01T00:00:00Z", 7_200_000)).toBe("2 h ago");
  expect(ago(3600, 7_200_000)).toBe("1 h ago");
});

test("an address is its parts and its query", () => {
  const place = parse("/s/a%2Fb/rollouts?q=x%20y");
  expect(place.path).toEqual(["s", "a/b", "rollouts"]);
  expect(place.query.get("q")).toBe("x y");
  expect(parse("/s/%E0%A4%A").path).toEqual(["s", "%E0%A4%A"]);
});

test("empty filters are left out of a question", () => {
  expect(withQuery("/api/x", { a: null, b: "", c: 0 })).toBe("/api/x?c=0");
});

test("a search is found by whole words, and by beginnings with a star", () => {
  expect("primes.txt Prime".match(searched("prime") as RegExp)).toEqual(["Prime"]);
  expect("primes.txt Prime".match(searched("prime*") as RegExp)).toEqual(["primes", "Prime"]);
  expect(searched("( .*")).toBeNull();
});

test("ticks are round and in the range", () => {
  expect(ticks(0, 1, 4)).toEqual([0, 0.25, 0.5, 0.75, 1]);
  expect(ticks(3, 3, 4)).toEqual([3]);
});

test("a range holds every value", () => {
  const [low, high] = extent([0.2, null, 0.9]);
  expect(low <= 0.2 && high >= 0.9).toBe(true);
  expect(extent([])).toEqual([0, 1]);
});

test("a long curve is thinned to its means", () => {
  const steps = Array.from({ length: 10_000 }, (_, n) => n);
  const thin = thinned(steps, steps.map(() => 2), 400);
  expect(thin.steps.length).toBe(400);
  expect(new Set(thin.values)).toEqual(new Set([2]));
  expect(smoothed([1, null, 3], 2)).toEqual([1, null, 3]);
});

test("waiting is what no call takes", () => {
  const calls = [{ span: "model", name: "m", start: 1, seconds: 2 }, { span: "tool", name: "t", start: 2, seconds: 3 }];
  expect(waiting(calls, 6).map((one) => [one.start, one.seconds])).toEqual([[0, 1], [5, 1]]);
});

test("heat goes from sure to unlikely", () => {
  expect([heat(0), heat(-0.001), heat(-20)]).toEqual([0, 0, 6]);
});

test("a report answers from itself, filtered and by pages", () => {
  const rows = Array.from({ length: 60 }, (_, n) => ({ id: String(n), score: n / 60, failure: null, tools: ["t"], title: `item ${n}` }));
  const report = answersOf(JSON.stringify({ "/api/s/a/rollouts": { rows, next: null, total: 60 } }));
  const page = report.answer("/api/s/a/rollouts?limit=50") as { rows: unknown[]; next: string };
  expect([page.rows.length, page.next]).toEqual([50, "50"]);
  const best = report.answer("/api/s/a/rollouts?sort=-score&min_score=0.9&limit=50") as { rows: { id: string }[] };
  expect(best.rows.map((row) => row.id)).toEqual(["59", "58", "57", "56", "55", "54"]);
  expect(() => report.answer("/api/s/b")).toThrow("not included");
});

test("a report is searched in what was said", () => {
  const rows = [{ id: "1-0", title: "one" }, { id: "1-1", title: "two" }];
  const report = answersOf(JSON.stringify({
    "/api/s/a/rollouts": { rows },
    "/api/s/a/rollouts/1-1/messages": { rows: [{ n: 0, content: { text: "A banana, peeled." } }], next: null, total: 1 },
  }));
  const found = (q: string): string[] => (report.answer(`/api/s/a/rollouts?q=${q}`) as { rows: { id: string }[] }).rows.map((row) => row.id);
  expect([found("two+banana"), found("banan"), found("banan*"), found("one")]).toEqual([["1-1"], [], ["1-1"], ["1-0"]]);
});

test("a report gives conversations and tokens by pages", () => {
  const said = Array.from({ length: 90 }, (_, n) => ({ n }));
  const report = answersOf(JSON.stringify({
    "/r/messages": { rows: said, next: 90, total: 120 },
    "/r/tokens?sequence=1": { ids: [1, 2, 3, 4, 5], mask: [0, 1, 1, 1, 1], pieces: null, total: 9, next: 5 },
  }));
  const page = report.answer("/r/messages?from=40&limit=40") as { rows: { n: number }[]; next: number; total: number };
  expect([page.rows.length, page.rows[0]?.n, page.next, page.total]).toEqual([40, 40, 80, 120]);
  expect((report.answer("/r/messages?from=80&limit=40") as { next: number | null }).next).toBeNull();
  expect(report.answer("/r/tokens?sequence=1&from=3&limit=2")).toEqual({ ids: [4, 5], mask: [1, 1], pieces: null, total: 9, next: null });
});

test("a report says what it is of and where it begins", () => {
  expect(answersOf("{}").about).toEqual({ note: null, start: "/", compare: false, runs: 0 });
  expect(answersOf('{"report": {"start": "/s/a"}}').about.start).toBe("/s/a");
});

test("a value between two gaps is a dot", () => {
  const same = (value: number): number => value;
  expect(path({ steps: [1, 2, 3, 4], values: [5, null, 6, null] }, same, same)).toBe("M1.0 5.0h0M3.0 6.0h0");
});

test("worked examples are what stands between the system prompt and the task", () => {
  const said = (...roles: [string, boolean][]): Message[] => roles.map(([role, sampled], n) => ({
    n, role, sampled, reasoning: null, content: null, tool_calls: [], tool_call_id: null, name: null, error: false, turn: 0, state: null, rewards: [],
  }));
  const shown = said(["system", false], ["user", false], ["assistant", false], ["user", false], ["assistant", true], ["user", false]);
  expect(workedExamples(shown).map((row) => row.n)).toEqual([1, 2]);
  expect(workedExamples(said(["system", false], ["user", false], ["assistant", true]))).toEqual([]);
  expect(workedExamples(said(["user", false], ["user", false]))).toEqual([]);
});
