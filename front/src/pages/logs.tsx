// The last lines of a run's logs, one component at a time.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { address, useApi, withQuery } from "../api";
import type { Logs } from "../api";
import { count } from "../format";
import { Head, useSource } from "../parts/head";
import { Empty, Given } from "../parts/states";
import { Block } from "../parts/text";
import { changed, go, usePlace } from "../route";

const LINES = ["50", "200", "1000", "5000"];

export function LogsPage({ source: id }: { source: string }): JSX.Element {
  const source = useSource(id);
  const { query } = usePlace();
  const lines = LINES.includes(query.get("lines") ?? "") ? query.get("lines") : "200";
  const answer = useApi<Logs>(withQuery(address(id, "logs"), { part: query.get("part"), lines }), 3000);
  return (
    <div class="page">
      <Head source={source.data} now="Logs" id={id} />
      <Given answer={answer}>
        {(data) => data.part === null ? <Empty title="No logs yet."><p>Each component of a run writes its log when it starts.</p></Empty> : (
          <>
            <div class="filters">
              <label><span>Component</span>
                <select value={data.part} onChange={(event) => go(changed({ part: event.currentTarget.value }), true)}>
                  {data.parts.map((part) => <option key={part} value={part}>{part}</option>)}
                </select>
              </label>
              <label><span>Lines</span>
                <select value={String(data.lines)} onChange={(event) => go(changed({ lines: event.currentTarget.value }), true)}>
                  {LINES.map((one) => <option key={one} value={one}>{`last ${count(Number(one))}`}</option>)}
                </select>
              </label>
            </div>
            <Tail key={data.part} text={data.text} />
          </>
        )}
      </Given>
    </div>
  );
}

/** Stays at the end while it grows, unless somebody has scrolled up. */
function Tail({ text }: { text: string }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  const scrolled = (): void => {
    const now = box.current;
    if (now) atEnd.current = now.scrollHeight - now.scrollTop - now.clientHeight < 40;
  };
  return (
    <div ref={box} class="log" tabIndex={0} role="log" aria-label="Log" aria-live="off" onScroll={scrolled}>
      {text.trim() ? <Block mono value={text} /> : <Empty title="This log is empty." />}
    </div>
  );
}
