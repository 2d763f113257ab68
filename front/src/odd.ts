// What a rollout's text may hold that is not seen or that changes how other text is seen, and the symbol each is shown as.
// Always true: the pieces of a text, put together with their symbols' originals, are the text with its lines ended by a line feed.

export interface Piece { text: string; odd: string | null }

// C0 but for tab and line feed, DEL, C1; soft hyphen; zero-width and bidi controls; separators; byte order mark; interlinear
// marks; tag characters and variation selectors beyond 16, in which text can be hidden; halves of surrogate pairs.
const ODD = new RegExp(
  "(?:\\u001b\\[[0-9;:?]{0,40}[A-Za-z]" + // an ANSI sequence is one piece
    "|[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]" +
    "|[\\u{e0000}-\\u{e01ef}]" +
    "|[\\ud800-\\udfff])+",
  "gu",
);
const ONE = /\u001b\[([0-9;:?]{0,40}[A-Za-z])|([^])/gu;

const C0 = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");
const NAMES: Record<number, string> = {
  0x7f: "DEL", 0xad: "SHY", 0x61c: "ALM", 0x180e: "MVS", 0x200b: "ZWSP", 0x200e: "LRM", 0x200f: "RLM", 0x2028: "LSEP", 0x2029: "PSEP",
  0x202a: "LRE", 0x202b: "RLE", 0x202c: "PDF", 0x202d: "LRO", 0x202e: "RLO", 0x2060: "WJ", 0x2066: "LRI", 0x2067: "RLI",
  0x2068: "FSI", 0x2069: "PDI", 0xfeff: "BOM",
};

export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  // A carriage return before a line feed is how some tools end lines, not a trick.
  const clean = text.replaceAll("\r\n", "\n");
  for (const match of clean.matchAll(ODD)) {
    if (match.index > from) found.push({ text: clean.slice(from, match.index), odd: null });
    found.push({ text: symbols(match[0]), odd: match[0] });
    from = match.index + match[0].length;
  }
  if (from < clean.length) found.push({ text: clean.slice(from), odd: null });
  return found;
}

/** The text as one string in which nothing is hidden: for titles and labels, which hold no elements. */
export function plain(text: string, length = 300): string {
  const cut = text.length > length ? `${text.slice(0, length)}…` : text;
  return pieces(cut).map((piece) => (piece.odd === null ? piece.text : `[${piece.text}]`)).join("").replace(/\s+/g, " ");
}

function symbols(odd: string): string {
  const shown: string[] = [];
  let last = "";
  let times = 0;
  const flush = (): void => {
    if (times) shown.push(times > 3 ? `${last}×${times}` : Array(times).fill(last).join(" "));
  };
  for (const match of odd.matchAll(ONE)) {
    const symbol = match[1] !== undefined ? `ESC[${match[1]}` : symbolOf(match[2] ?? "");
    if (symbol !== last) {
      flush();
      [last, times] = [symbol, 0];
    }
    times += 1;
  }
  flush();
  return shown.join(" ");
}

function symbolOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  const name = C0[code] ?? NAMES[code];
  if (name) return name;
  if (code > 0xe0020 && code < 0xe007f) return `tag ${String.fromCodePoint(code - 0xe0000)}`;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}
