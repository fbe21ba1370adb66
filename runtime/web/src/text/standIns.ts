/** Characters that stand for special-token text inside a message while a template is filled in. */
const FIRST = 0xf0000, LAST = 0x10ffff;

/** Plain values: what messages are made of. */
export type Plain = string | number | boolean | null | undefined | Plain[] | { [name: string]: Plain };

/** Private-use characters that do not occur in the values given, each for one text. */
export class StandIns {
  /** Characters, and the text that each stands for. */
  readonly meant = new Map<string, string>();
  private readonly of = new Map<string, string>();
  private readonly taken: ReadonlySet<string>;
  private next = FIRST;

  constructor(values: Plain) {
    this.taken = new Set(texts(values).join(""));
  }

  /** A character that stands for nothing yet. */
  make(): string {
    for (; this.next <= LAST; this.next++) {
      const character = String.fromCodePoint(this.next);
      if (!this.taken.has(character)) return this.next++, character;
    }
    throw new RangeError("there is no character left");
  }

  /** `value` with a character in the place of each of `names`, the longest first, wherever it is spelled. */
  put(value: Plain, names: Iterable<string>): Plain {
    const sorted = [...names].filter(Boolean).sort((a, b) => b.length - a.length);
    if (!sorted.length) return value;
    return this.replace(value, new RegExp(sorted.map((name) => name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|"), "gu"));
  }

  private replace(value: Plain, pattern: RegExp): Plain {
    if (typeof value === "string") return value.replace(pattern, (text) => this.character(text));
    if (Array.isArray(value)) return value.map((item) => this.replace(item, pattern));
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, this.replace(item, pattern)]));
  }

  private character(text: string): string {
    let character = this.of.get(text);
    if (character === undefined) {
      character = this.make();
      this.of.set(text, character);
      this.meant.set(character, text);
    }
    return character;
  }
}

function texts(value: Plain): string[] {
  if (typeof value === "string") return [value];
  if (typeof value !== "object" || value === null) return [];
  return (Array.isArray(value) ? value : Object.values(value)).flatMap(texts);
}
