// The dialog of keys, opened with "?".
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { keysOn, setKeys } from "./keys";

const KEYS: [string, [string, string][]][] = [
  ["Everywhere", [
    ["j  k", "Next or previous row or message"], ["Enter", "Open the row, or fold the message"], ["/", "Search"], ["u", "Back to the list"],
    ["t", "Switch theme: system, light, dark"], ["?", "Show this help"],
  ]],
  ["Go to", [["g h", "Sources"], ["g o", "Overview"], ["g g", "Groups"], ["g r", "Rollouts"], ["g l", "Logs of a run"], ["g c", "Compare"], ["g v", "Overlay of runs"]]],
  ["In a list", [["n  p", "Next or previous page"]]],
  ["In a rollout", [
    ["1 – 4", "Conversation, timeline, tokens, record"], ["[  ]", "Previous or next rollout of the group"], ["e", "Expand or collapse everything"],
    ["y", "Copy as JSONL"],
  ]],
];

export function Help({ open, close }: { open: boolean; close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [on, setOn] = useState(keysOn);
  useEffect(() => {
    if (open && !dialog.current?.open) dialog.current?.showModal();
    if (!open && dialog.current?.open) dialog.current.close();
  }, [open]);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="help-title" onClick={(event) => event.target === dialog.current && close()}>
      <div class="help">
        <h2 id="help-title">Keyboard shortcuts</h2>
        <div class="help-columns">
          {KEYS.map(([title, keys]) => (
            <section key={title}>
              <h3>{title}</h3>
              <dl>
                {keys.map(([key, what]) => (
                  <div key={key}>
                    <dt>{key.split(/\s+/).map((one) => (one === "–" ? " – " : <kbd>{one}</kbd>))}</dt>
                    <dd>{what}</dd>
                  </div>
                ))}
              </dl>
            </section>
          ))}
        </div>
        <div class="help-end">
          <label>
            <input type="checkbox" checked={on} onChange={(event) => { setKeys(event.currentTarget.checked); setOn(event.currentTarget.checked); }} />
            Enable single-key shortcuts
          </label>
          <button type="button" autoFocus onClick={close}>Close</button>
        </div>
      </div>
    </dialog>
  );
}
