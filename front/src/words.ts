// A search's words as the server takes them: split at what is no letter or digit, `*` at the end for a beginning.

const MOST = 200;

/** A pattern for each word. */
export function patterns(find: string | null): string[] {
  const words = [...(find ?? "").slice(0, MOST).matchAll(/([\p{L}\p{N}]+)(\*?)/gu)];
  return words.map(([, word, star]) => `(?<![\\p{L}\\p{N}])${word}${star ? "[\\p{L}\\p{N}]*" : "(?![\\p{L}\\p{N}])"}`);
}
