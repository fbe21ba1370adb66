/**
 * A tokenizer's pattern, written for Rust's fancy-regex as tiktoken runs it, as a JavaScript one with the flags `gu`.
 *
 * What differs: white space (Rust's \s has U+0085 and lacks U+FEFF), digits, `(?i:)` for a part, possessive
 * repetition and atomic groups (a look-ahead with a back-reference), `\x{}`, dots and anchors. Whatever is
 * neither the same nor translated here is refused.
 */
import { TokenizerError } from "../errors.js";

const SPACE = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
// Letters that Unicode folds onto ASCII ones.
const FOLDED: Record<string, string> = { s: "sS\\u017f", k: "kK\\u212a" };
const ZERO_WIDTH = /^\(\?(?:<?[=!])/;
const REPEAT = /^(?:[*+?]|\{\d+(?:,\d*)?\})/;

/** Translate `pattern`. Throws TokenizerError for what this reader does not know. */
export function translate(pattern: string): string {
  return new Translator(pattern).whole();
}

class Translator {
  private at = 0;
  private groups = 0;

  constructor(private readonly pattern: string) {}

  whole(): string {
    const found = this.alternatives(false);
    if (this.at < this.pattern.length) throw this.unknown(")");
    return found;
  }

  private alternatives(fold: boolean): string {
    let out = "";
    for (;;) {
      const next = this.pattern[this.at];
      if (next === undefined || next === ")") return out;
      if (next === "|") {
        out += "|";
        this.at++;
        continue;
      }
      const zeroWidth = ZERO_WIDTH.test(this.rest());
      out += zeroWidth ? this.atom(fold) : this.repeated(this.atom(fold));
    }
  }

  private repeated(atom: string): string {
    const repeat = REPEAT.exec(this.rest())?.[0];
    if (repeat === undefined) return atom;
    this.at += repeat.length;
    if (this.taken("+")) return this.atomic(atom + repeat);
    return atom + repeat + (this.taken("?") ? "?" : "");
  }

  /** What was matched is not given back: a look-ahead is decided once. */
  private atomic(inner: string): string {
    return `(?:(?=(?<a${++this.groups}>${inner}))\\k<a${this.groups}>)`;
  }

  private atom(fold: boolean): string {
    const character = this.pattern[this.at] ?? "";
    if (character === "(") return this.group(fold);
    if (character === "[") return this.class(fold);
    if (character === "\\") return this.escape(false);
    if (this.taken(".")) return "[^\\n]";
    if (this.taken("$")) return "(?![^])";
    if (this.taken("^")) return "(?<![^])";
    const whole = String.fromCodePoint(this.pattern.codePointAt(this.at) ?? 0);
    this.at += whole.length;
    if (fold && /[a-z]/i.test(whole)) return `[${folded(whole)}]`;
    return /[\]{}/]/.test(whole) ? "\\" + whole : whole;
  }

  private group(fold: boolean): string {
    const zeroWidth = ZERO_WIDTH.exec(this.rest())?.[0];
    let out: string;
    if (zeroWidth !== undefined) {
      this.at += zeroWidth.length;
      out = zeroWidth + this.alternatives(fold) + ")";
    } else if (this.taken("(?i:")) out = `(?:${this.alternatives(true)})`;
    else if (this.taken("(?:")) out = `(?:${this.alternatives(fold)})`;
    else if (this.taken("(?>")) out = this.atomic(this.alternatives(fold));
    else if (this.rest().startsWith("(?")) throw this.unknown(this.rest().slice(0, 4));
    else {
      this.at++;
      out = `(?:${this.alternatives(fold)})`;
    }
    if (!this.taken(")")) throw this.unknown("a group without an end");
    return out;
  }

  private class(fold: boolean): string {
    this.at++;
    let out = this.taken("^") ? "[^" : "[";
    if (this.taken("]")) out += "\\]";
    while (!this.taken("]")) {
      const character = this.pattern[this.at];
      if (character === undefined) throw this.unknown("a class without an end");
      if (character === "\\") out += this.escape(true);
      else if (character === "[" || this.rest().startsWith("&&")) throw this.unknown("an operation on classes");
      else {
        const whole = String.fromCodePoint(this.pattern.codePointAt(this.at) ?? 0);
        out += fold && /[a-z]/i.test(whole) ? folded(whole) : whole;
        if (fold && whole === "-") throw this.unknown("a range that ignores case");
        this.at += whole.length;
      }
    }
    return out + "]";
  }

  private escape(inClass: boolean): string {
    const letter = this.pattern[this.at + 1] ?? "";
    this.at += 2;
    if (letter === "s") return inClass ? SPACE : `[${SPACE}]`;
    if (letter === "S" && !inClass) return `[^${SPACE}]`;
    if (letter === "d") return "\\p{Nd}";
    if (letter === "D") return "\\P{Nd}";
    if (letter === "p" || letter === "P") return this.property(letter);
    if (letter === "x" || letter === "u") return this.codePoint(letter);
    if (/[nrtfv]/.test(letter)) return "\\" + letter;
    if (letter === "" || /[A-Za-z0-9]/.test(letter)) throw this.unknown("\\" + letter);
    return /[\^$\\.*+?()[\]{}|/]/.test(letter) || (inClass && letter === "-") ? "\\" + letter : letter;
  }

  private property(letter: string): string {
    const name = /^\{[\w=^]+\}|^[A-Z]/.exec(this.rest())?.[0];
    if (name === undefined || name.includes("^")) throw this.unknown("\\" + letter);
    this.at += name.length;
    return `\\${letter}${name.length === 1 ? `{${name}}` : name}`;
  }

  private codePoint(letter: string): string {
    const digits = /^\{([0-9a-fA-F]+)\}/.exec(this.rest()) ?? (letter === "x" ? /^([0-9a-fA-F]{2})/ : /^([0-9a-fA-F]{4})/).exec(this.rest());
    if (!digits) throw this.unknown("\\" + letter);
    this.at += digits[0].length;
    return `\\u{${digits[1]}}`;
  }

  private rest(): string {
    return this.pattern.slice(this.at);
  }

  private taken(text: string): boolean {
    if (!this.pattern.startsWith(text, this.at)) return false;
    this.at += text.length;
    return true;
  }

  private unknown(what: string): TokenizerError {
    return new TokenizerError(`the tokenizer's pattern has ${what} at ${this.at}, which this reader does not know`, "update edgelm");
  }
}

function folded(letter: string): string {
  const lower = letter.toLowerCase();
  return FOLDED[lower] ?? lower + letter.toUpperCase();
}
