// Light, dark, or as the system has it. Always true: `data-theme` on the root says which of the three; the colours are style/base.css's.
import { useEffect, useState } from "preact/hooks";
import { store, stored } from "./keys";

export type Theme = "system" | "light" | "dark";

const NAME = "hermes-rl.theme";
const CHANGED = "hermes-rl-theme";

export function theme(): Theme {
  const value = stored(NAME);
  return value === "light" || value === "dark" ? value : "system";
}

export function setTheme(value: Theme): void {
  store(NAME, value);
  document.documentElement.dataset["theme"] = value;
  window.dispatchEvent(new Event(CHANGED));
}

export function nextTheme(): void {
  const order: Theme[] = matchMedia("(prefers-color-scheme: dark)").matches ? ["system", "light", "dark"] : ["system", "dark", "light"];
  setTheme(order[(order.indexOf(theme()) + 1) % order.length] ?? "system");
}

export function useTheme(): Theme {
  const [value, setValue] = useState(theme);
  useEffect(() => {
    const watcher = (): void => setValue(theme());
    window.addEventListener(CHANGED, watcher);
    return () => window.removeEventListener(CHANGED, watcher);
  }, []);
  return value;
}
