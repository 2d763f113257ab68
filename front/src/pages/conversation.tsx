// A rollout's messages. Always true: a page of them is asked for at a time, and a text that is cut is read on page by page.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { address, ask, withQuery } from "../api";
import type { Message, Messages, Text } from "../api";
import { count, many, signed } from "../format";
import { Problem } from "../problem";
import { Loading, Trouble } from "../parts/states";
import { Longer } from "../parts/longer";
import { toolName } from "../parts/bits";
import { Block, Name, searched } from "../parts/text";
import { changed, Link } from "../route";

const AT_ONCE = 40;

interface Props { source: string; rollout: string; narrow?: boolean; at?: number | null; unfolded?: boolean | null; find?: string | null }

export function Conversation({ source, rollout, narrow, at, unfolded, find }: Props): JSX.Element {
  const base = address(source, "rollouts", rollout);
  const start = at ? Math.max(0, at - 4) : 0;
  const [rows, setRows] = useState<Message[]>([]);
  const [next, setNext] = useState<number | null>(start);
  const [total, setTotal] = useState(0);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [all, setAll] = useState(false);
  const busy = useRef(false);
  const end = useRef<HTMLDivElement>(null);
  const more = async (from: number | null, before = false): Promise<void> => {
    if (busy.current || from === null) return;
    busy.current = true;
    try {
      const limit = before ? Math.min(AT_ONCE, (rows[0]?.n ?? 0) - from) : AT_ONCE;
      const page = await ask<Messages>(withQuery(`${base}/messages`, { from, limit }));
      if (before) setRows((old) => [...page.rows, ...old]);
      else {
        setRows((old) => [...old, ...page.rows]);
        setNext(page.next);
        setTotal(page.total ?? 0);
      }
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, String(error), null));
    } finally {
      busy.current = false;
    }
  };
  useEffect(() => void more(start), []);
  useEffect(() => {
    if (at !== null && at !== undefined) document.getElementById(`m${at}`)?.scrollIntoView({ block: "center" });
  }, [rows.length > 0]);
  useEffect(() => {
    if (!end.current || next === null || !rows.length) return;
    const observer = new IntersectionObserver(([entry]) => entry?.isIntersecting && void more(next), { rootMargin: "600px" });
    observer.observe(end.current);
    return () => observer.disconnect();
  }, [next]);
  if (problem) return <Trouble problem={problem} />;
  if (!rows.length && next !== null) return <Loading />;
  const first = rows[0]?.n ?? 0;
  const left = total - (rows.at(-1)?.n ?? total) - 1;
  const examples = narrow && !all ? workedExamples(rows) : [];
  const names = new Map(rows.flatMap((row) => row.tool_calls.map((call) => [call.id ?? "", call.name] as const)));
  return (
    <div class={narrow ? "conversation narrow" : "conversation"}>
      {first > 0 && <button type="button" class="more" onClick={() => void more(Math.max(0, first - AT_ONCE), true)}>Show {many(first, "earlier message")}</button>}
      {examples.length > 0 && <button type="button" class="more" onClick={() => setAll(true)}>Show {many(examples.length, "example message")}</button>}
      <ol>
        {rows.filter((row) => !examples.includes(row)).map((row) => (
          <One key={row.n} row={row} base={base} marked={at === row.n} narrow={narrow ?? false} unfolded={unfolded ?? null} find={find ?? null}
            tool={row.name ?? names.get(row.tool_call_id ?? "") ?? null} />
        ))}
      </ol>
      {next !== null && <div ref={end}><button type="button" class="more" onClick={() => void more(next)}>Load more messages</button></div>}
      {next === null && left > 0 && <p class="note">{many(left, "more message")} {left === 1 ? "is" : "are"} not included in this report.</p>}
    </div>
  );
}

/** What stands between the system prompt and the task: the same in every rollout of a group. */
export function workedExamples(rows: Message[]): Message[] {
  const prompt = rows.slice(0, Math.max(0, rows.findIndex((row) => row.sampled)));
  const task = prompt.map((row) => row.role).lastIndexOf("user");
  return prompt.slice(0, Math.max(0, task)).filter((row) => row.role !== "system");
}

interface OneProps { row: Message; base: string; marked: boolean; narrow: boolean; unfolded: boolean | null; find: string | null; tool: string | null }

function One({ row, base, marked, narrow, unfolded, find, tool }: OneProps): JSX.Element {
  const path = (part: string) => (from: number): string => withQuery(`${base}/text`, { message: row.n, part, from });
  const classes = ["message", `role-${known(row.role)}`, row.error && "error", marked && "marked"].filter(Boolean).join(" ");
  const fold = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.target !== event.currentTarget) return;
    event.preventDefault();
    const all = [...(event.currentTarget as HTMLElement).querySelectorAll("details")];
    const open = all.some((one) => !one.open);
    all.forEach((one) => { one.open = open; });
  };
  return (
    <li class={classes} id={narrow ? undefined : `m${row.n}`} tabIndex={-1} onKeyDown={fold} {...(narrow ? {} : { "data-row": "" })} aria-label={`Message ${row.n}, ${known(row.role)}`}>
      <div class="message-side">
        <span class="role">{known(row.role) === "other" ? <Name value={row.role} /> : row.role}</span>
        {row.error && <span class="flag bad">error</span>}
        {!narrow && <Link class="anchor number" to={changed({ message: row.n })} aria-label={`Link to message ${row.n}`}>{row.n}</Link>}
      </div>
      <div class="message-body">
        {row.reasoning && <Folded kind="reasoning" title="Reasoning" text={row.reasoning} path={path("reasoning")} unfolded={unfolded} find={find} />}
        {row.content && row.content.chars > 0 && (row.role === "tool"
          ? <Folded kind="result" title={tool === null ? "result" : toolName(tool)} text={row.content} path={path("content")} unfolded={unfolded ?? (row.error || null)} find={find} mono />
          : row.role === "system"
            ? <Folded kind="system" title="System prompt" text={row.content} path={path("content")} unfolded={unfolded} find={find} />
            : <Longer text={row.content} path={path("content")} find={find} />)}
        {row.tool_calls.map((call, n) => (
          <Folded key={n} kind="call" title={toolName(call.name)} text={pretty(call.arguments)} short={call.arguments.text} path={path(`call:${n}`)} unfolded={unfolded} find={find} mono />
        ))}
        {!row.reasoning && !(row.content && row.content.chars) && !row.tool_calls.length && <span class="muted">(empty)</span>}
        {row.rewards?.map((reward, n) => (
          <p key={n} class="step-reward">step reward <b class="number">{signed(reward.value)}</b>{reward.note && <>: <Name value={reward.note} /></>}</p>
        ))}
        {row.state && <State turn={row.turn} state={row.state} unfolded={unfolded} find={find} />}
      </div>
    </li>
  );
}

interface FoldedProps {
  kind: string; title: string; text: Text; short?: string; path: ((from: number) => string) | null; unfolded: boolean | null; find: string | null; mono?: boolean;
}

function Folded({ kind, title, text, short, path, unfolded, find, mono }: FoldedProps): JSX.Element {
  const matches = searched(find)?.test(text.text) ?? false;
  const [open, setOpen] = useState(unfolded ?? matches);
  useEffect(() => {
    if (unfolded !== null) setOpen(unfolded);
  }, [unfolded]);
  return (
    <details class={`folded ${kind}`} open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class="folded-kind">{kind === "call" ? "call" : kind === "result" ? "result" : ""}</span>
        <span class="folded-title"><Name value={title} /></span>
        <span class="folded-short"><Name value={(short ?? text.text).slice(0, 160).replace(/\s+/g, " ")} /></span>
        <span class="folded-size number">{count(text.chars)}</span>
      </summary>
      {open && (path ? <Longer text={text} path={path} find={find} mono={mono ?? false} /> : <Block value={text.text} find={find} mono={mono ?? false} />)}
      {open && !path && text.cut && <p class="note">The first {count(text.text.length)} of {count(text.chars)} characters; the record has all.</p>}
    </details>
  );
}

/** The environment's state after a turn, with the names that changed. */
function State({ turn, state, unfolded, find }: { turn: number; state: NonNullable<Message["state"]>; unfolded: boolean | null; find: string | null }): JSX.Element {
  const title = turn === 0 ? "State at the start" : `State after turn ${turn}`;
  const short = state.changed.length ? `changed: ${state.changed.join(", ")}` : state.text;
  return <Folded kind="env-state" title={title} text={pretty(state)} short={short} path={null} unfolded={unfolded} find={find} mono />;
}

function pretty(text: Text): Text {
  if (text.cut) return text;
  try {
    const value: unknown = JSON.parse(text.text);
    return typeof value === "object" && value !== null ? { ...text, text: JSON.stringify(value, null, 2) } : text;
  } catch {
    return text;
  }
}

function known(role: string): string {
  return ["system", "user", "assistant", "tool"].includes(role) ? role : "other";
}
