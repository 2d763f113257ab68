// Text that somebody else wrote: the model, a tool, a web page. Always true: it becomes text nodes and nothing else, what is hidden in
// it is marked, and it stays in its own box and direction (style/text.css).
import { memo } from "preact/compat";
import type { JSX } from "preact";
import { pieces, plain } from "../odd";
import { patterns } from "../words";

const MARKS = 800;

interface Props { value: string; find?: string | null }

/** A block of it: lines and spaces as they are. */
export const Block = memo(function Block({ value, find, mono }: Props & { mono?: boolean }): JSX.Element {
  return (
    <div class={mono ? "foreign mono" : "foreign"} dir="auto">
      <Marked value={value} find={find ?? null} />
    </div>
  );
});

/** One line of it, cut off where its box ends. */
export function Line({ value, find, mono }: Props & { mono?: boolean }): JSX.Element {
  return (
    <span class={mono ? "foreign-line mono" : "foreign-line"} dir="auto" title={plain(value)}>
      <Marked value={value.slice(0, 400).replace(/\s+/g, " ")} find={find ?? null} />
    </span>
  );
}

/** A short name of it, as of a tool or a model, that may break where it must. */
export function Name({ value, long }: { value: string; long?: boolean }): JSX.Element {
  return (
    <span class="foreign-name" dir="auto">
      <Marked value={value.slice(0, long ? 4000 : 200)} find={null} />
    </span>
  );
}

function Marked({ value, find }: { value: string; find: string | null }): JSX.Element {
  return (
    <>
      {pieces(value).map((piece) =>
        piece.odd === null ? found(piece.text, find) : <span class="odd" title={codes(piece.odd)}>{piece.text}</span>,
      )}
    </>
  );
}

function found(text: string, find: string | null): (string | JSX.Element)[] | string {
  const pattern = searched(find);
  if (!pattern) return text;
  const shown: (string | JSX.Element)[] = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    if (shown.length > MARKS) break;
    shown.push(text.slice(from, match.index), <mark>{match[0]}</mark>);
    from = match.index + match[0].length;
  }
  return [...shown, text.slice(from)];
}

/** Any of the words of a search. */
export function searched(find: string | null): RegExp | null {
  const words = patterns(find);
  return words.length ? new RegExp(words.join("|"), "giu") : null;
}

function codes(odd: string): string {
  const shown = [...odd].slice(0, 12).map((one) => `U+${(one.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`);
  return shown.join(" ");
}
