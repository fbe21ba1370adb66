/**
 * Regular expressions over whole texts, as automata over bytes: what a constraint needs to know after each token.
 *
 * Rust's syntax, as in the Python package: literals, escapes, classes, groups, alternation, repetition. Anchors,
 * look-around and back-references are refused, as there.
 */
import { OptionError } from "../errors.js";
import { shown } from "../validation.js";

type Range = [number, number];
type Node =
  | { kind: "set"; ranges: Range[] }
  | { kind: "sequence"; parts: Node[] }
  | { kind: "either"; parts: Node[] }
  | { kind: "repeat"; part: Node; least: number; most: number };

const LAST = 0x10ffff;
const MOST_STATES = 100_000;
const SHORTHAND: Record<string, string> = {
  d: "\\p{Nd}", s: "[\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]",
  w: "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]",
};
const CONTROL: Record<string, number> = { n: 10, r: 13, t: 9, f: 12, v: 11, a: 7, "0": 0 };

/** The automaton of `pattern`. Throws OptionError for what is not a regular expression of this kind. */
export function compileRegex(pattern: string): Automaton {
  if (typeof pattern !== "string" || !pattern) throw new OptionError(`regex is ${shown(pattern)}`, "give a regular expression");
  return new Automaton(new Parser(pattern).whole());
}

/** The automaton of exactly these texts. */
export function compileChoices(choices: readonly string[]): Automaton {
  if (!Array.isArray(choices) || !choices.length || choices.some((choice) => typeof choice !== "string" || !choice)) {
    throw new OptionError(`choices is ${shown(choices)}`, "give a list of texts that are not empty");
  }
  return new Automaton({ kind: "either", parts: choices.map((choice) => ({ kind: "sequence", parts: [...choice].map(literal) })) });
}

function literal(character: string): Node {
  const code = character.codePointAt(0)!;
  return { kind: "set", ranges: [[code, code]] };
}

class Parser {
  private readonly characters: string[];
  private at = 0;

  constructor(private readonly pattern: string) {
    this.characters = [...pattern];
  }

  whole(): Node {
    const node = this.either();
    if (this.at < this.characters.length) throw this.refused("an unmatched )");
    return node;
  }

  private either(): Node {
    const parts = [this.sequence()];
    while (this.taken("|")) parts.push(this.sequence());
    return parts.length === 1 ? parts[0]! : { kind: "either", parts };
  }

  private sequence(): Node {
    const parts: Node[] = [];
    for (let next = this.characters[this.at]; next !== undefined && next !== "|" && next !== ")"; next = this.characters[this.at]) {
      parts.push(this.repeated(this.atom()));
    }
    return { kind: "sequence", parts };
  }

  private repeated(part: Node): Node {
    for (;;) {
      let bounds: Range;
      if (this.taken("*")) bounds = [0, Infinity];
      else if (this.taken("+")) bounds = [1, Infinity];
      else if (this.taken("?")) bounds = [0, 1];
      else {
        const counted = /^\{(\d+)(,(\d*))?\}/.exec(this.characters.slice(this.at, this.at + 24).join(""));
        if (!counted) return part;
        this.at += counted[0].length;
        const least = Number(counted[1]);
        bounds = [least, counted[2] === undefined ? least : counted[3] ? Number(counted[3]) : Infinity];
        if (bounds[1] < least) throw this.refused("a repetition of at least more than at most");
      }
      this.taken("?"); // lazy or not, the same texts match
      part = { kind: "repeat", part, least: bounds[0], most: bounds[1] };
    }
  }

  private atom(): Node {
    const character = this.characters[this.at++]!;
    if (character === "(") {
      if (this.taken("?")) {
        if (this.taken("P")) this.name();
        else if (!this.taken(":")) throw this.refused(`(?${this.characters[this.at] ?? ""}`);
      }
      const inner = this.either();
      if (!this.taken(")")) throw this.refused("a group without an end");
      return inner;
    }
    if (character === "[") return { kind: "set", ranges: this.class() };
    if (character === ".") return { kind: "set", ranges: [[0, 9], [11, LAST]] };
    if (character === "\\") return { kind: "set", ranges: this.escape() };
    if ("^$".includes(character)) throw this.refused(`the anchor ${character}: the whole text matches anyway`);
    if ("*+?".includes(character)) throw this.refused(`a ${character} after nothing`);
    return literal(character);
  }

  private name(): void {
    const end = this.characters.indexOf(">", this.at);
    if (!this.taken("<") || end < 0) throw this.refused("(?P");
    this.at = end + 1;
  }

  private class(): Range[] {
    const negated = this.taken("^"), ranges: Range[] = [];
    let first = true;
    while (first || this.characters[this.at] !== "]") {
      const character = this.characters[this.at++];
      if (character === undefined) throw this.refused("a class without an end");
      if (character === "[" || (character === "&" && this.characters[this.at] === "&")) throw this.refused("an operation on classes");
      first = false;
      const found = character === "\\" ? this.escape() : codes(character);
      if (this.characters[this.at] === "-" && this.characters[this.at + 1] !== "]" && found.length === 1 && found[0]![0] === found[0]![1]) {
        this.at++;
        const end = this.characters[this.at++];
        const [[last] = [NaN]] = end === "\\" ? this.escape() : codes(end ?? "");
        if (!(last >= found[0]![0])) throw this.refused("a range that ends before it begins");
        ranges.push([found[0]![0], last]);
      } else ranges.push(...found);
    }
    this.at++;
    return negated ? complement(ranges) : ranges;
  }

  private escape(): Range[] {
    const letter = this.characters[this.at++] ?? "", lower = letter.toLowerCase();
    const shorthand = SHORTHAND[lower];
    if (shorthand) return letter === lower ? matching(shorthand) : complement(matching(shorthand));
    if (letter === "p" || letter === "P") return this.property(letter);
    if (letter === "x" || letter === "u") return this.codePoint(letter);
    if (Object.hasOwn(CONTROL, letter)) return [[CONTROL[letter]!, CONTROL[letter]!]];
    if (letter === "" || /[A-Za-z1-9]/.test(letter)) throw this.refused(`\\${letter}`);
    return codes(letter);
  }

  private property(letter: string): Range[] {
    const name = /^(?:\{([\w=]+)\}|([A-Z]))/.exec(this.characters.slice(this.at, this.at + 40).join(""));
    if (!name) throw this.refused(`\\${letter}`);
    this.at += name[0].length;
    const ranges = this.checked(() => matching(`\\p{${name[1] ?? name[2]}}`), name[0]);
    return letter === "p" ? ranges : complement(ranges);
  }

  private codePoint(letter: string): Range[] {
    const digits = (letter === "x" ? /^(?:\{([0-9a-fA-F]+)\}|([0-9a-fA-F]{2}))/ : /^(?:\{([0-9a-fA-F]+)\}|([0-9a-fA-F]{4}))/).exec(
      this.characters.slice(this.at, this.at + 12).join(""),
    );
    if (!digits) throw this.refused(`\\${letter}`);
    this.at += digits[0].length;
    const code = Number.parseInt(digits[1] ?? digits[2]!, 16);
    return [[code, code]];
  }

  private checked<T>(find: () => T, what: string): T {
    try {
      return find();
    } catch {
      throw this.refused(what);
    }
  }

  private taken(character: string): boolean {
    if (this.characters[this.at] !== character) return false;
    this.at++;
    return true;
  }

  private refused(what: string): OptionError {
    return new OptionError(`regex is ${shown(this.pattern)}, with ${what}`, "give a regular expression without look-around, anchors or back-references");
  }
}

function codes(character: string): Range[] {
  const code = character.codePointAt(0) ?? NaN;
  return [[code, code]];
}

function complement(ranges: Range[]): Range[] {
  const sorted = [...ranges].sort(([a], [b]) => a - b), found: Range[] = [];
  let next = 0;
  for (const [low, high] of sorted) {
    if (low > next) found.push([next, low - 1]);
    next = Math.max(next, high + 1);
  }
  if (next <= LAST) found.push([next, LAST]);
  return found;
}

const matched = new Map<string, Range[]>();

/** The characters that a class of JavaScript matches. */
function matching(source: string): Range[] {
  let ranges = matched.get(source);
  if (ranges) return ranges;
  const one = new RegExp(`^${source}$`, "u");
  ranges = [];
  for (let code = 0, inside = false; code <= LAST; code++) {
    const matches = (code < 0xd800 || code > 0xdfff) && one.test(String.fromCodePoint(code));
    if (matches && inside) ranges.at(-1)![1] = code;
    else if (matches) ranges.push([code, code]);
    inside = matches;
  }
  matched.set(source, ranges);
  return ranges;
}

interface Edge {
  low: number;
  high: number;
  to: number;
}

/** A set of states of the automaton without choices, made when it is first reached. */
export interface State {
  readonly accepting: boolean;
  /** Whether anything can follow. */
  readonly final: boolean;
  readonly next: (State | null | undefined)[];
  readonly members: readonly number[];
}

/** An automaton over the bytes of UTF-8. */
export class Automaton {
  readonly start: State;
  private readonly edges: Edge[][] = [];
  private readonly free: number[][] = [];
  private readonly states = new Map<string, State>();
  private readonly end: number;

  constructor(node: Node) {
    const begin = this.add();
    this.end = this.build(node, begin);
    this.start = this.state([begin]);
  }

  /** The state after a byte; null where no text goes on so. */
  step(state: State, byte: number): State | null {
    let next = state.next[byte];
    if (next === undefined) {
      const reached = state.members.flatMap((member) => this.edges[member]!.filter(({ low, high }) => low <= byte && byte <= high).map(({ to }) => to));
      next = reached.length ? this.state(reached) : null;
      state.next[byte] = next;
    }
    return next;
  }

  private state(reached: number[]): State {
    const all = new Set(reached);
    for (const member of all) for (const to of this.free[member]!) all.add(to);
    const members = [...all].filter((member) => this.edges[member]!.length || member === this.end).sort((a, b) => a - b);
    const key = members.join();
    let state = this.states.get(key);
    if (!state) {
      state = { accepting: all.has(this.end), final: members.every((member) => !this.edges[member]!.length), next: [], members };
      this.states.set(key, state);
    }
    return state;
  }

  private add(): number {
    if (this.edges.length >= MOST_STATES) throw new OptionError("the constraint is too large", "use smaller numbers of repetitions");
    this.free.push([]);
    return this.edges.push([]) - 1;
  }

  /** Add what matches `node` after state `from`; gives the state after it. */
  private build(node: Node, from: number): number {
    if (node.kind === "set") return this.buildSet(node.ranges, from);
    if (node.kind === "sequence") return node.parts.reduce((at, part) => this.build(part, at), from);
    if (node.kind === "either") {
      const to = this.add();
      for (const part of node.parts) {
        const begin = this.add();
        this.free[from]!.push(begin);
        this.free[this.build(part, begin)]!.push(to);
      }
      return to;
    }
    let at = from;
    for (let i = 0; i < node.least; i++) at = this.build(node.part, at);
    if (node.most === Infinity) {
      const loop = this.add(), to = this.add();
      this.free[at]!.push(loop);
      this.free[this.build(node.part, loop)]!.push(loop);
      this.free[loop]!.push(to);
      return to;
    }
    const to = this.add();
    for (let i = node.least; i < node.most; i++) {
      this.free[at]!.push(to);
      const begin = this.add();
      this.free[at]!.push(begin);
      at = this.build(node.part, begin);
    }
    this.free[at]!.push(to);
    return to;
  }

  private buildSet(ranges: Range[], from: number): number {
    const to = this.add();
    for (const range of ranges) {
      for (const bytes of utf8(range)) {
        let at = from;
        bytes.forEach(([low, high], i) => {
          const next = i === bytes.length - 1 ? to : this.add();
          this.edges[at]!.push({ low, high, to: next });
          at = next;
        });
      }
    }
    return to;
  }
}

/** Sequences of byte ranges that together are the UTF-8 of the characters of a range. */
function utf8([low, high]: Range): Range[][] {
  for (const [edge, skip] of [[0x7f, 0x80], [0x7ff, 0x800], [0xd7ff, 0xe000], [0xffff, 0x10000]] as const) {
    if (low <= edge && high > edge) return [...utf8([low, edge]), ...(high >= skip ? utf8([skip, high]) : [])];
  }
  if (low >= 0xd800 && low <= 0xdfff) return high > 0xdfff ? utf8([0xe000, high]) : [];
  if (high <= 0x7f) return [[[low, high]]];
  for (let i = 1; i < 4; i++) {
    const mask = 2 ** (6 * i) - 1;
    if (Math.floor(low / (mask + 1)) === Math.floor(high / (mask + 1))) continue;
    if (low & mask) return [...utf8([low, low | mask]), ...utf8([(low | mask) + 1, high])];
    if ((high & mask) !== mask) return [...utf8([low, (high & ~mask) - 1]), ...utf8([high & ~mask, high])];
  }
  const from = new TextEncoder().encode(String.fromCodePoint(low)), to = new TextEncoder().encode(String.fromCodePoint(high));
  return [[...from].map((byte, i) => [byte, to[i]!] as Range)];
}
