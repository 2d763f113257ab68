// What stands around every page: the bar with the way back, the theme, the help; and the keys that hold everywhere.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { embedded } from "./embedded";
import { Help } from "./help";
import { step, useKeys } from "./keys";
import { go, Link, link, usePlace } from "./route";
import { nextTheme, useTheme } from "./theme";

export function Shell({ children }: { children: ComponentChildren }): JSX.Element {
  const [help, setHelp] = useState(false);
  const { path, key } = usePlace();
  const main = useRef<HTMLElement>(null);
  const before = useRef(key);
  const searching = useRef(false);
  const source = path[0] === "s" ? path[1] : undefined;
  const to = (...rest: string[]) => (): void => go(source === undefined ? "/" : link(source, ...rest));
  useKeys({
    "?": () => setHelp(true),
    t: nextTheme,
    j: () => step(1),
    k: () => step(-1),
    "/": () => {
      field()?.focus();
      field()?.select();
      if (field() || source === undefined) return;
      searching.current = true;
      go(link(source, "rollouts"));
    },
    "g h": () => go("/"),
    "g o": to(),
    "g g": to("groups"),
    "g r": to("rollouts"),
    "g l": to("logs"),
    "g c": () => go("/compare"),
    "g v": () => go("/overlay"),
    u: () => go(above(path)),
  });
  useEffect(() => {
    // A screen reader, and the next press of Tab, go on from the new page and not from the link that is gone.
    if (before.current !== key) (searching.current ? field() : main.current)?.focus({ preventScroll: true });
    [before.current, searching.current] = [key, false];
  }, [key]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
      <header class="bar">
        <Link to="/" class="brand" aria-label="hermes-rl"><Mark /><span>hermes-rl</span></Link>
        <nav aria-label="Main">
          <Link to="/" {...current(path.length === 0)}>Sources</Link>
          {(!embedded || embedded.about.compare) && <Link to="/compare" {...current(path[0] === "compare")}>Compare</Link>}
          {(!embedded || embedded.about.runs > 1) && <Link to="/overlay" {...current(path[0] === "overlay")}>Overlay</Link>}
        </nav>
        <span class="grow" />
        <ThemeSwitch />
        <button type="button" class="quiet" onClick={() => setHelp(true)} aria-haspopup="dialog" aria-label="Keyboard shortcuts (?)">
          <span class="label">Shortcuts</span> <kbd>?</kbd>
        </button>
      </header>
      <main id="main" ref={main} tabIndex={-1}>
        {embedded?.about.note && <p class="report-note">{embedded.about.note}</p>}
        {children}
      </main>
      <Help open={help} close={() => setHelp(false)} />
    </>
  );
}

function ThemeSwitch(): JSX.Element {
  const theme = useTheme();
  return (
    <button type="button" class="quiet" onClick={nextTheme} aria-label={`Theme: ${theme}. Switch`} title="Theme (t)">
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.4" />
        <path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" />
      </svg>
      <span class="label">{theme}</span>
    </button>
  );
}

function Mark(): JSX.Element {
  return (
    <svg viewBox="0 0 32 32" width="20" height="20" aria-hidden="true">
      <rect width="32" height="32" rx="7" class="mark-box" />
      <path d="M6 23 12 15l5 4 9-11" class="mark-line" />
    </svg>
  );
}

function current(is: boolean): { "aria-current"?: "page" } {
  return is ? { "aria-current": "page" } : {};
}

function field(): HTMLInputElement | null {
  return document.querySelector<HTMLInputElement>("[data-search]");
}

function above(path: string[]): string {
  if (path[0] !== "s" || path.length <= 2) return "/";
  const [, source = "", ...rest] = path;
  return link(source, ...rest.slice(0, -1));
}
