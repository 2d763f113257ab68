// The keyboard: one listener, and maps of keys that pages lay over it. Always true: nothing is taken from a field that is typed in, nor from
// a key with Ctrl, Alt or Meta.
import { useEffect, useRef } from "preact/hooks";

export type Keys = Record<string, () => void>;

const layers: { current: Keys }[] = [];
const SWITCH = "hermes-rl.keys";
const PREFIX_MS = 1500;
let prefix: { key: string; at: number } | null = null;

export function keysOn(): boolean {
  return stored(SWITCH) !== "off";
}

export function setKeys(on: boolean): void {
  store(SWITCH, on ? "on" : "off");
}

/** Keys for as long as the component stands; a later layer goes before an earlier one. Two keys in turn are written "g h". */
export function useKeys(keys: Keys): void {
  const layer = useRef(keys);
  layer.current = keys;
  useEffect(() => {
    layers.push(layer);
    return () => void layers.splice(layers.indexOf(layer), 1);
  }, []);
}

export function listen(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    const target = event.target as HTMLElement | null;
    if (target?.closest("input, textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (document.querySelector("dialog[open]") || (!keysOn() && event.key !== "?")) return;
    const action = actionOf(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  });
}

/** Focus on the next or previous of the page's rows. */
export function step(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")].filter((row) => row.offsetParent !== null);
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}

function actionOf(key: string): (() => void) | null {
  const pending = prefix && Date.now() - prefix.at < PREFIX_MS ? prefix.key : null;
  prefix = null;
  for (const name of pending ? [`${pending} ${key}`, key] : [key]) {
    for (const layer of [...layers].reverse()) {
      const action = layer.current[name];
      if (action) return action;
    }
  }
  if (layers.some((layer) => Object.keys(layer.current).some((name) => name.startsWith(`${key} `)))) {
    prefix = { key, at: Date.now() };
    return () => undefined;
  }
  return null;
}

export function stored(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function store(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // A browser that keeps nothing still shows everything.
  }
}
