import { expect, test } from "vitest";
import { pieces, plain } from "../src/odd";

const odd = (text: string): string[] => pieces(text).filter((piece) => piece.odd !== null).map((piece) => piece.text);

test("plain text is one piece", () => {
  expect(pieces("a line\n\tand <b>another</b> é 漢字 👩‍👩‍👧")).toEqual([{ text: "a line\n\tand <b>another</b> é 漢字 👩‍👩‍👧", odd: null }]);
});

test("control characters are named", () => {
  expect(odd("a\u0000b\u0007c\u007fd\u0085")).toEqual(["NUL", "BEL", "DEL", "U+0085"]);
});

test("an ANSI sequence is one mark", () => {
  expect(odd("\u001b[31mred\u001b[0m")).toEqual(["ESC[31m", "ESC[0m"]);
});

test("controls of direction are named", () => {
  expect(odd("a\u202eb\u2066c\u2069")).toEqual(["RLO", "LRI", "PDI"]);
});

test("half of a surrogate pair is marked and a whole one is not", () => {
  expect(odd("\ud83d x 😀 \udc00")).toEqual(["U+D83D", "U+DC00"]);
});

test("letters hidden as tags are told", () => {
  expect(odd("a\u{e0048}\u{e0069}")).toEqual(["tag H tag i"]);
});

test("many in a row are counted", () => {
  expect(odd("\u0000".repeat(5000))).toEqual(["NUL×5000"]);
});

test("lines that end as on Windows are not marked, a lone return is", () => {
  expect(odd("a\r\nb")).toEqual([]);
  expect(odd("a\rb")).toEqual(["CR"]);
});

test("the pieces hold the whole text", () => {
  const text = "x\u001b[1;31my\u202ez\u0000\ud800";
  expect(pieces(text).map((piece) => piece.odd ?? piece.text).join("")).toBe(text);
});

test("a title holds nothing hidden and is short", () => {
  expect(plain("a\u202eb\n c")).toBe("a[RLO]b c");
  expect(plain("x".repeat(1000)).length).toBe(301);
});
