// Where we are: the path and the query of the address bar, so that every view has a link that can be sent to somebody.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { embedded } from "./embedded";

export interface Place { path: string[]; query: URLSearchParams; key: string }

const watchers = new Set<() => void>();
const tell = (): void => watchers.forEach((watcher) => watcher());
if (typeof window !== "undefined") {
  window.addEventListener("popstate", tell);
  window.addEventListener("hashchange", tell);
}

export function place(): Place {
  const address = embedded ? location.hash.slice(1) || embedded.about.start : location.pathname + location.search;
  return parse(address);
}

export function parse(address: string): Place {
  const [path = "/", query = ""] = address.split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { path: parts, query: new URLSearchParams(query), key: path };
}

export function usePlace(): Place {
  const [now, setNow] = useState(place);
  useEffect(() => {
    const watcher = (): void => setNow(place());
    watchers.add(watcher);
    return () => void watchers.delete(watcher);
  }, []);
  return now;
}

export function go(to: string, replace = false): void {
  const before = place().key;
  if (replace) history.replaceState(null, "", href(to));
  else history.pushState(null, "", href(to));
  if (parse(to).key !== before) window.scrollTo(0, 0);
  tell();
}

/** The same page with other values in its query; `null` and "" take a name out. */
export function changed(values: Record<string, string | number | null>): string {
  const { key, query } = place();
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, String(value));
  }
  const text = next.toString();
  return text ? `${key}?${text}` : key;
}

export function link(source: string, ...rest: string[]): string {
  return ["/s", encodeURIComponent(source), ...rest.map(encodeURIComponent)].join("/");
}

export function href(to: string): string {
  return embedded ? `#${to}` : to;
}

type LinkProps = { to: string; children: ComponentChildren; row?: boolean } & Omit<JSX.AnchorHTMLAttributes, "href" | "ref">;

export function Link({ to, children, row, ...rest }: LinkProps): JSX.Element {
  const follow = (event: MouseEvent): void => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={href(to)} onClick={follow} {...(row ? { "data-row": "" } : {})} {...rest}>
      {children}
    </a>
  );
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
