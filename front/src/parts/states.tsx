// A page that has nothing to show yet, or at all, says so, and what to do.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Answer, Source } from "../api";
import { bytes, count } from "../format";
import type { Problem } from "../problem";
import { Link } from "../route";
import { Block } from "./text";

/** What an answer is: being waited for, a problem, or there. While a new one is waited for the old one stays, dimmed. */
export function Given<T>({ answer, children }: { answer: Answer<T>; children: (data: T) => ComponentChildren }): JSX.Element {
  if (answer.problem && answer.data === null) return <Trouble problem={answer.problem} />;
  if (answer.data === null) return <Loading />;
  return (
    <div class={answer.loading ? "waits" : undefined} aria-busy={answer.loading}>
      {answer.problem && <Trouble problem={answer.problem} />}
      {children(answer.data)}
    </div>
  );
}

export function Loading(): JSX.Element {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = window.setTimeout(() => setShown(true), 150);
    return () => window.clearTimeout(timer);
  }, []);
  return (
    <div class="loading" role="status">
      {shown && <><span class="visually-hidden">Loading</span><i /><i /><i /></>}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function Trouble({ problem }: { problem: Problem }): JSX.Element {
  return (
    <div class="trouble" role="alert">
      <Block value={problem.message} />
      {problem.nextStep && <Block value={problem.nextStep} />}
    </div>
  );
}

export function Missing(): JSX.Element {
  return (
    <Empty title="Page not found.">
      <p><Link to="/">Back to all sources</Link></p>
    </Empty>
  );
}

/** How far the index of a file is, or what is wrong with the source. */
export function Condition({ source }: { source: Source }): JSX.Element | null {
  if (source.problem) return <div class="trouble" role="alert"><Block value={source.problem} /></div>;
  if (!source.indexing) return null;
  const { done_bytes: done, total_bytes: total } = source.indexing;
  return (
    <div class="indexing" role="status">
      <progress max={Math.max(total, 1)} value={done} aria-label="Index" />
      <span>Indexing: {source.kind === "database" || source.kind === "run" ? `${count(done)} of ${count(total)}` : `${bytes(done)} of ${bytes(total)}`}. Results so far are shown.</span>
    </div>
  );
}
