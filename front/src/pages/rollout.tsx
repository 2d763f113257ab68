// One rollout: its result, conversation, timeline and exact tokens.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { address, useApi } from "../api";
import type { Rollout } from "../api";
import { count, number, score, seconds, signed, words } from "../format";
import { useKeys } from "../keys";
import { Facts, Json, Jsonl, Score, Tabs, used } from "../parts/bits";
import { Trail, useTitle } from "../parts/head";
import { Given } from "../parts/states";
import { Block, Name } from "../parts/text";
import { changed, go, Link, link, usePlace } from "../route";
import { Conversation } from "./conversation";
import { FailureNote } from "./group";
import { versions } from "./rollouts";
import { Timeline } from "./timeline";
import { TokenView } from "./tokens";

const VIEWS = ["conversation", "timeline", "tokens", "record"];

export function RolloutPage({ source, id }: { source: string; id: string }): JSX.Element {
  const answer = useApi<Rollout>(address(source, "rollouts", id));
  const rollout = answer.data;
  useTitle(rollout ? `Rollout ${rollout.index} · ${rollout.title || rollout.item_id}` : null);
  const steps: [string, string][] = [["Rollouts", link(source, "rollouts")]];
  if (rollout) steps.push([`Group ${(rollout.item_id ?? "").slice(0, 16)}`, link(source, "groups", rollout.group_id)]);
  return (
    <div class="page">
      <Trail source={source} steps={steps} />
      <Given answer={answer}>{(data) => <Shown source={source} rollout={data} />}</Given>
    </div>
  );
}

function Shown({ source, rollout }: { source: string; rollout: Rollout }): JSX.Element {
  const { query } = usePlace();
  const [unfolded, setUnfolded] = useState<boolean | null>(null);
  const asked = query.get("view");
  const view = VIEWS.includes(asked ?? "") ? (asked ?? "") : "conversation";
  const to = (name: string): string => changed({ view: name === "conversation" ? null : name, from: null, sequence: null, paint: null });
  const { previous, next } = rollout.neighbours;
  const visit = (other: string | null) => (): void => {
    if (other) go(`${link(source, "rollouts", other)}${view === "conversation" ? "" : `?view=${view}`}`);
  };
  useKeys({
    ...Object.fromEntries(VIEWS.map((name, n) => [String(n + 1), () => go(to(name), true)])),
    "[": visit(previous),
    "]": visit(next),
    e: () => setUnfolded((old) => !old),
    y: () => document.querySelector<HTMLElement>("[data-copy]")?.click(),
  });
  const message = query.get("message");
  return (
    <>
      <div class="head">
        <div class="head-line">
          <h1 class="item-title"><Name value={rollout.title || rollout.item_id} /></h1>
          <span class="grow" />
          <Jsonl path={address(source, "rollouts", `${rollout.id}.jsonl`)} keys />
        </div>
        <div class="head-line neighbours">
          <Step to={previous} source={source} label="Previous rollout of the group">←</Step>
          <Link to={link(source, "groups", rollout.group_id)}>Rollout {rollout.index} of this group</Link>
          <Step to={next} source={source} label="Next rollout of the group">→</Step>
        </div>
        <Tabs label="This rollout" now={title(view)} tabs={VIEWS.map((name) => [title(name), to(name), extra(name, rollout)])} />
      </div>
      <div class="rollout">
        <div class="rollout-main">
          {view === "conversation" && (
            <>
              <FailureNote row={rollout} message={rollout.failure_message} />
              <div class="rollout-tools"><button type="button" class="quiet" onClick={() => setUnfolded((old) => !old)}>{unfolded ? "Collapse all" : "Expand all"} <kbd>e</kbd></button></div>
              <Conversation source={source} rollout={rollout.id} at={message === null ? null : Number(message)} unfolded={unfolded} find={query.get("q")} />
            </>
          )}
          {view === "timeline" && <Timeline rollout={rollout} />}
          {view === "tokens" && <TokenView source={source} rollout={rollout} />}
          {view === "record" && <Json value={{ ...rollout, timings: `${rollout.timings.length} calls; see the timeline` }} />}
        </div>
        <aside class="rollout-side" aria-label="Result"><Sum rollout={rollout} /></aside>
      </div>
    </>
  );
}

function Sum({ rollout }: { rollout: Rollout }): JSX.Element {
  const parts = Object.entries(rollout.components);
  const most = Math.max(1, ...parts.map(([, value]) => Math.abs(value ?? 0)));
  return (
    <>
      <section aria-label="Reward">
        <h2>Reward</h2>
        {rollout.score === null ? <Score value={null} failure={rollout.failure} /> : <p class="figure"><b class="number">{score(rollout.score)}</b></p>}
        {parts.length > 0 && (
          <ul class="components">
            {parts.map(([name, value]) => (
              <li key={name}>
                <Name value={name} /><span class="number">{score(value)}</span>
                <span class="component-bar" aria-hidden="true"><i class={(value ?? 0) < 0 ? "bad" : undefined} style={{ width: `${(100 * Math.abs(value ?? 0)) / most}%` }} /></span>
              </li>
            ))}
          </ul>
        )}
        {rollout.turn_scores && rollout.turn_scores.length > 0 && <p class="note">per turn: <span class="number">{rollout.turn_scores.slice(0, 40).map((one) => number(one, 2)).join(" · ")}</span></p>}
        {rollout.advantage !== null && <p class="note">advantage <b class="number">{signed(rollout.advantage)}</b>: {rollout.advantage_rule}</p>}
        {rollout.step_reward !== null && <p class="note">step rewards sum to <b class="number">{signed(rollout.step_reward)}</b></p>}
      </section>
      {rollout.notes.length > 0 && (
        <section aria-label="Notes">
          <h2>Notes</h2>
          {rollout.notes.map((note) => (
            <details key={note.name} class="note-text" open={note.text.length <= 400}>
              <summary><Name value={note.name} /></summary><Block value={note.text} />
              {note.chars > note.text.length && <p class="note">The first {count(note.text.length)} of {count(note.chars)} characters.</p>}
            </details>
          ))}
        </section>
      )}
      <section aria-label="Facts">
        <h2>Facts</h2>
        <Facts facts={[
          ["stop reason", rollout.stop_reason ? <Name value={words(rollout.stop_reason)} /> : "–"],
          ...(rollout.end_reason ? [["ended by environment", <Name value={rollout.end_reason} />] as [string, JSX.Element]] : []),
          ...(rollout.seat ? [["seat", <Name value={rollout.seat} />] as [string, JSX.Element]] : []),
          ...(used(rollout.use) ? [["training", <span>{used(rollout.use)}</span>] as [string, JSX.Element]] : []),
          ["turns", <span class="number">{count(rollout.turns)}</span>],
          ["tool calls", <span class="number">{count(rollout.tool_calls)}{rollout.tool_errors ? <span class="errors"> {count(rollout.tool_errors)} ✕</span> : null}</span>],
          ["messages", <span class="number">{count(rollout.messages)}</span>],
          ["prompt tokens", <span class="number">{count(rollout.usage?.["prompt_tokens"])}</span>],
          ["completion tokens", <span class="number">{count(rollout.completion_tokens)}</span>],
          ["duration", <span class="number">{seconds(rollout.seconds)}</span>],
          ["policy version", <span class="number">{versions(rollout.version)}</span>],
        ]} />
      </section>
    </>
  );
}

function Step({ to, source, label, children }: { to: string | null; source: string; label: string; children: string }): JSX.Element {
  return to === null ? <span class="step none" aria-hidden="true">{children}</span> : <Link class="step" to={link(source, "rollouts", to)} aria-label={label} title={label}>{children}</Link>;
}

function title(view: string): string {
  return view.charAt(0).toUpperCase() + view.slice(1);
}

function extra(view: string, rollout: Rollout): JSX.Element | null {
  const value = view === "conversation" ? rollout.messages : view === "tokens" ? rollout.sequences.reduce((all, one) => all + one.tokens, 0) : 0;
  return value ? <span class="tab-count">{count(value)}</span> : null;
}
