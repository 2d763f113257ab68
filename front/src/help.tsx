// The dialog of keys, opened with "?".
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { keysOn, setKeys } from "./keys";

const KEYS: [string, [string, string][]][] = [
  ["Everywhere", [
    ["j  k", "next and previous row or message"], ["Enter", "open it, or fold it"], ["/", "search"], ["u", "up: back to the list"],
    ["t", "theme: system, light, dark"], ["?", "this help"],
  ]],
  ["Go to", [["g h", "sources"], ["g o", "overview"], ["g g", "groups"], ["g r", "rollouts"], ["g c", "compare"]]],
  ["In a list", [["n  p", "next and previous page"]]],
  ["In a rollout", [
    ["1 – 4", "conversation, timeline, tokens, record"], ["[  ]", "previous and next rollout of the group"], ["e", "unfold or fold everything"],
    ["y", "copy as JSONL"],
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
        <h2 id="help-title">Keyboard</h2>
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
            Single keys are on
          </label>
          <button type="button" autoFocus onClick={close}>Close</button>
        </div>
      </div>
    </dialog>
  );
}
