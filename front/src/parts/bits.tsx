// Small things that stand on several pages.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { askText } from "../api";
import { embedded } from "../embedded";
import { ago, NONE, score, words } from "../format";
import { Link } from "../route";
import { Block, Name } from "./text";

/** A score as a number over a bar from 0 to 1; without one, whose fault that is. */
export function Score({ value, failure }: { value: number | null; failure?: string | null }): JSX.Element {
  if (value === null) return <span class="score none">{failure ? <Name value={failure} /> : "no score"}</span>;
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
  const label = shown.map((value) => (value === null ? "no score" : score(value))).join(", ");
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
      setSaid("Could not copy");
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
  if (["starting", "stopping", "waiting"].includes(name)) return "busy";
  return "done";
}
