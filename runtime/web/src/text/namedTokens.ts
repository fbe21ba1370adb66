/** Where text spells tokens that are taken out before any merging: added tokens, and special tokens on request. */
export type Strip = "left" | "right" | "both";

// Unicode's White_Space property.
const SPACES = "[\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]*";
const SPACES_BEFORE = new RegExp(`${SPACES}$`), SPACES_AHEAD = new RegExp(SPACES, "y");

/** A set of token texts, the longest of which counts at each place; `strip` names those that swallow the white space next to them. */
export class NamedTokens {
  private readonly pattern: RegExp | null;

  constructor(names: Iterable<string>, private readonly strip: ReadonlyMap<string, Strip>) {
    const sorted = [...new Set(names)].filter(Boolean).sort((a, b) => b.length - a.length);
    this.pattern = sorted.length ? new RegExp(sorted.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"), "gu") : null;
  }

  /** (start, end, name) of each token in `text`, from left to right. */
  *places(text: string): Generator<[start: number, end: number, name: string]> {
    if (!this.pattern) return;
    let done = 0;
    for (const match of text.matchAll(this.pattern)) {
      const name = match[0], strip = this.strip.get(name);
      let start = match.index, end = start + name.length;
      if (start < done) continue; // it begins in the white space that the token before it has taken
      if (strip === "left" || strip === "both") start = done + text.slice(done, start).replace(SPACES_BEFORE, "").length;
      if (strip === "right" || strip === "both") {
        SPACES_AHEAD.lastIndex = end;
        end += SPACES_AHEAD.exec(text)![0].length;
      }
      yield [start, end, name];
      done = end;
    }
  }
}
