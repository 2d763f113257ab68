// Small things that stand on several pages.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { askText } from "../api";
import type { Command, Use } from "../api";
import { embedded } from "../embedded";
import { ago, NONE, score, words } from "../format";
import { plain } from "../odd";
import { Link } from "../route";
import { Block, Name } from "./text";

/** A score as a number over a bar from 0 to 1; without one, whose fault that is. */
export function Score({ value, failure }: { value: number | null; failure?: string | null }): JSX.Element {
  if (value === null) return <span class="score none">{failure ? <Name value={failure} /> : "not scored"}</span>;
  const part = Math.max(0, Math.min(1, value));
  return (
    <span class="score">
      <span class="score-bar" aria-hidden="true"><i style={{ width: `${100 * part}%` }} /></span>
      <span class="number">{score(value)}</span>
    </span>
  );
}

/** The scores of a group as columns side by side: what is even, spread or failed is seen at once. */
export function Scores({ values }: { values: (number | null)[] }): JSX.Element {
  const shown = values.slice(0, 32);
  const label = shown.map((value) => (value === null ? "not scored" : score(value))).join(", ");
  return (
    <svg class="scores" width={shown.length * 7} height="18" role="img" aria-label={`Scores: ${label}`}>
      {shown.map((value, n) =>
        value === null ? (
          <path key={n} class="failed" d={`M${n * 7 + 0.5} 12.5l4 4m0-4l-4 4`} />
        ) : (
          <rect key={n} class={value > 0 ? "some" : "zero"} x={n * 7} width="5" rx="1"
            y={17 - Math.max(2, 16 * Math.min(1, Math.max(0, value)))} height={Math.max(2, 16 * Math.min(1, Math.max(0, value)))} />
        ),
      )}
    </svg>
  );
}

export function When({ at }: { at: string | number | null }): JSX.Element {
  if (!at || ago(at) === NONE) return <span>{NONE}</span>;
  const iso = typeof at === "number" ? new Date(at * 1000).toISOString() : at;
  return <time dateTime={iso} title={iso}>{ago(at)}</time>;
}

export function State({ value }: { value: string | null }): JSX.Element | null {
  if (!value) return null;
  return <span class={`state state-${kindOf(value)}`}><i aria-hidden="true" />{words(value.toLowerCase())}</span>;
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd>{value}</dd></div>
      ))}
    </dl>
  );
}

export function Tabs({ label, tabs, now }: { label: string; tabs: [string, string, ComponentChildren?][]; now: string }): JSX.Element {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map(([name, to, more]) => (
        <Link key={name} to={to} {...(name === now ? { "aria-current": "page" as const } : {})}>{name}{more}</Link>
      ))}
    </nav>
  );
}

/** Copies a record as the line of JSON it is, and offers it as a file. */
export function Jsonl({ path, keys }: { path: string; keys?: boolean }): JSX.Element | null {
  const [said, setSaid] = useState("");
  if (embedded && !embedded.has(path)) return null;
  const copy = async (): Promise<void> => {
    setSaid("…");
    try {
      await navigator.clipboard.writeText(await askText(path));
      setSaid("Copied");
    } catch {
      setSaid("Copying failed");
    }
    window.setTimeout(() => setSaid(""), 2500);
  };
  return (
    <span class="jsonl">
      <button type="button" onClick={() => void copy()} {...(keys ? { "data-copy": "" } : {})}>Copy JSONL</button>
      {!embedded && <a class="button" href={path} download="">Download</a>}
      <span role="status" class="said">{said}</span>
    </span>
  );
}

/** A command line with a button that copies it. */
export function CommandLine({ command }: { command: Command }): JSX.Element {
  const [said, setSaid] = useState("");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(command.line);
      setSaid("Copied");
    } catch {
      setSaid("Copying failed");
    }
    window.setTimeout(() => setSaid(""), 2500);
  };
  return (
    <li>
      <span class="command-what">{command.what}</span>
      <span class="command-line"><code><Name value={command.line} long /></code>
        <button type="button" aria-label={`Copy: ${plain(command.line)}`} onClick={() => void copy()}>Copy</button>
        <span role="status" class="said">{said}</span></span>
    </li>
  );
}

/** Settings as names and values; long values and nested ones are folded. */
export function Settings({ value }: { value: Record<string, unknown> }): JSX.Element {
  const rows = flattened(value);
  return (
    <table class="tight settings">
      <tbody>
        {rows.map(([name, one]) => (
          <tr key={name}><th scope="row"><Name value={name} /></th><td><Value value={one} /></td></tr>
        ))}
      </tbody>
    </table>
  );
}

const SHORT = 90;

export function Value({ value }: { value: unknown }): JSX.Element {
  if (value === null || value === undefined) return <span class="muted">not set</span>;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (text.length <= SHORT && !text.includes("\n")) return <span class="mono"><Name value={text} /></span>;
  return <details><summary><Name value={text.slice(0, SHORT).replace(/\s+/g, " ")} />…</summary><Json value={value} /></details>;
}

/** Objects within objects as `outer.inner`. */
export function flattened(value: Record<string, unknown>, prefix = ""): [string, unknown][] {
  return Object.entries(value).flatMap(([name, one]): [string, unknown][] =>
    typeof one === "object" && one !== null && !Array.isArray(one) && Object.keys(one).length > 0
      ? flattened(one as Record<string, unknown>, `${prefix}${name}.`)
      : [[`${prefix}${name}`, one]]);
}

/** The name of a tool as the model wrote it: spaces around it are part of it, so it is quoted. */
export function toolName(name: string): string {
  return name === name.trim() && name !== "" ? name : JSON.stringify(name);
}

/** What became of a group in training. */
export function used(use: Use | null): string | null {
  if (!use) return null;
  if (use.state === "trained") return use.step === null ? `batch ${use.batch ?? "?"}` : `step ${use.step}`;
  if (use.state === "dropped") return `dropped${use.cause ? `: ${words(use.cause)}` : ""}`;
  return use.state === "leased" ? "being trained on" : "queued";
}

/** An object of any depth as the text it is. */
export function Json({ value }: { value: unknown }): JSX.Element {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return <div class="json" tabIndex={0} role="region" aria-label="As JSON"><Block mono value={text ?? "null"} /></div>;
}

export function Panel({ title, more, children, wide }: { title: string; more?: ComponentChildren; children: ComponentChildren; wide?: boolean }): JSX.Element {
  return (
    <section class={wide ? "panel wide" : "panel"} aria-label={title}>
      <header><h2>{title}</h2>{more}</header>
      {children}
    </section>
  );
}

function kindOf(state: string): string {
  const name = state.toLowerCase();
  if (["running", "ready"].includes(name)) return "live";
  if (["failed", "interrupted", "died"].includes(name)) return "bad";
  if (["starting", "stopping", "waiting", "recovering"].includes(name)) return "busy";
  return "done";
}
