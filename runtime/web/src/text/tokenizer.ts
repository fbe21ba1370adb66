/**
 * Text to token ids and back, from the data in a model file; the same ids as the Python package gives.
 *
 * `runtime/edgelm_runtime` describes the fields. Bytes are held as strings of characters 0 to 255, which can be keys
 * of a Map.
 */
import { OptionError, TokenizerError } from "../errors.js";
import { shown } from "../validation.js";
import { mergeBytes } from "./bytePairs.js";
import { NamedTokens, type Strip } from "./namedTokens.js";
import { translate } from "./pattern.js";

export const END_OF_TEXT = "<|endoftext|>";

/** The `edgelm.tokenizer` entry of a model file. */
export interface TokenizerValues {
  tokens: string[];
  pattern: string;
  special: Record<string, number>;
  ids?: (number | number[])[];
  added?: Record<string, number>;
  normalized?: string[];
  strip?: Record<string, Strip>;
  decode_only?: Record<string, string>;
  normalization?: string;
  space_symbol?: string;
  prefix_space?: string;
  drop_unknown?: boolean;
}

const FIELDS = [
  "tokens", "pattern", "special", "ids", "added", "normalized", "strip", "decode_only", "normalization", "space_symbol", "prefix_space",
  "drop_unknown",
];
const MOST_KNOWN = 20_000;

/** Names of special tokens, or "all" of them. */
export type AllowedSpecial = "all" | Iterable<string>;

// Where a stretch of text stands: at the start of the whole, or after a named token.
type Place = "start" | "between";

export class Tokenizer {
  readonly vocabSize: number;
  /** Text of special tokens, and their ids. */
  readonly special: Readonly<Record<string, number>>;
  readonly specialIds: ReadonlySet<number>;
  readonly prefixSpace: string;
  private readonly ranks: Map<string, number>;
  private readonly pieces: RegExp;
  private readonly table: (readonly number[])[] | null;
  private readonly named: ReadonlyMap<string, number>;
  private readonly strip: ReadonlyMap<string, Strip>;
  private readonly cuts = new Map<string, NamedTokens>();
  /** Added tokens that are looked for after text was normalised: their normal forms, and their ids. */
  private readonly normalIds: ReadonlyMap<string, number>;
  private readonly normalCut: NamedTokens;
  private readonly known = new Map<string, number[]>();
  private bytes: (Uint8Array | undefined)[] = [];

  constructor(private readonly values: TokenizerValues) {
    const unknown = Object.keys(values).find((key) => !FIELDS.includes(key));
    if (unknown) throw new TokenizerError(`the tokenizer has the unknown field ${unknown}`, "update edgelm");
    if (!Array.isArray(values.tokens) || typeof values.pattern !== "string" || typeof values.special !== "object") {
      throw new TokenizerError("not a saved tokenizer", "export the model again");
    }
    this.prefixSpace = values.prefix_space ?? "never";
    if (!["", "NFC"].includes(values.normalization ?? "") || !["never", "first", "always", "each"].includes(this.prefixSpace)) {
      throw new TokenizerError(`the tokenizer asks for normalization ${shown(values.normalization)}, prefix space ${shown(this.prefixSpace)}`, "update edgelm");
    }
    this.ranks = new Map(values.tokens.map((token, rank) => [decoded(token), rank]));
    if (this.ranks.size !== values.tokens.length) throw new TokenizerError("the tokenizer lists the same bytes twice", "make the tokenizer again");
    for (let byte = 0; byte < 256; byte++) {
      if (!this.ranks.has(String.fromCharCode(byte))) throw new TokenizerError(`the tokenizer has no token for byte ${byte}`, "all 256 bytes must be present");
    }
    this.table = values.ids ? values.ids.map((entry) => (typeof entry === "number" ? [entry] : entry)) : null;
    if (this.table && this.table.length !== values.tokens.length) {
      throw new TokenizerError(`the tokenizer has ${values.tokens.length} tokens and ${this.table.length} ids`, "make it again");
    }
    this.special = values.special;
    this.specialIds = new Set(Object.values(values.special));
    this.named = new Map([...Object.entries(values.added ?? {}), ...Object.entries(values.special)]);
    this.strip = new Map(Object.entries(values.strip ?? {}));
    const lacking = [...(values.normalized ?? []).filter((name) => !Object.hasOwn(values.added ?? {}, name)), ...[...this.strip.keys()].filter((name) => !this.named.has(name))];
    if (lacking.length || [...this.strip.values()].some((side) => !["left", "right", "both"].includes(side))) {
      throw new TokenizerError(`the tokenizer gives habits to tokens that it lacks: ${shown(lacking.slice(0, 3))}`, "make it again");
    }
    this.normalIds = new Map((values.normalized ?? []).map((name) => [this.normal(name), values.added![name]!]));
    this.normalCut = new NamedTokens(this.normalIds.keys(), this.strip);
    try {
      this.pieces = new RegExp(translate(values.pattern), "gu");
    } catch (error) {
      if (error instanceof TokenizerError) throw error;
      throw new TokenizerError(`the tokenizer's pattern is not usable: ${(error as Error).message}`, "update edgelm");
    }
    this.vocabSize = 1 + this.largestId();
  }

  /** Id of `<|endoftext|>`, where there is one. */
  get endOfText(): number | undefined {
    return this.special[END_OF_TEXT];
  }

  /**
   * Token ids of `text`. Special tokens named in `allowedSpecial` become their ids; others are ordinary text.
   * `standIns` are characters that stand for text which is ordinary whatever it spells. Throws OptionError for a
   * special token that the model does not have, or a character that it cannot express.
   */
  encode(text: string, allowedSpecial: AllowedSpecial = [], standIns: readonly (readonly [string, string])[] = []): number[] {
    if (typeof text !== "string") throw new OptionError(`the text is ${shown(text)}`, "give a string");
    const found: number[] = [];
    const stretch = (part: string, first: boolean): void => {
      const meant = standIns.reduce((made, [character, meaning]) => made.replaceAll(character, () => meaning), part);
      this.encodeStretch(meant, first ? "start" : "between", found);
    };
    let start = 0;
    for (const [end, next, name] of this.cut(allowedSpecial).places(text)) {
      stretch(text.slice(start, end), start === 0);
      found.push(this.named.get(name)!);
      start = next;
    }
    stretch(text.slice(start), start === 0);
    return found;
  }

  /** The bytes of `ids`; those of special tokens are left out with `skipSpecial`. */
  decodeBytes(ids: Iterable<number>, skipSpecial = false): Uint8Array {
    const parts: Uint8Array[] = [];
    let length = 0;
    for (const id of ids) {
      if (!Number.isInteger(id) || id < 0 || id >= this.vocabSize) {
        throw new OptionError(`token id ${id} is outside the vocabulary of ${this.vocabSize}`, `give ids from 0 to ${this.vocabSize - 1}`);
      }
      const part = skipSpecial && this.specialIds.has(id) ? undefined : this.bytesOf(id);
      if (part) {
        parts.push(part);
        length += part.length;
      }
    }
    const all = new Uint8Array(length);
    let at = 0;
    for (const part of parts) {
      all.set(part, at);
      at += part.length;
    }
    return all;
  }

  /** The text of `ids`. Bytes that are not UTF-8 become U+FFFD. */
  decode(ids: Iterable<number>, skipSpecial = false): string {
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.decodeBytes(ids, skipSpecial));
    // Byte-level vocabularies keep the space that they have put in front ("each" without a symbol for it).
    const kept = this.prefixSpace === "never" || (this.prefixSpace === "each" && !this.values.space_symbol);
    return !kept && text.startsWith(" ") ? text.slice(1) : text;
  }

  /** What is taken out of text before it is normalised: added tokens and the special tokens allowed. */
  private cut(allowedSpecial: AllowedSpecial): NamedTokens {
    const allowed = allowedSpecial === "all" ? Object.keys(this.special) : typeof allowedSpecial === "string" ? [allowedSpecial] : [...allowedSpecial];
    const unknown = allowed.find((name) => !Object.hasOwn(this.special, name));
    if (unknown !== undefined) {
      throw new OptionError(`unknown special token ${shown(unknown)}`, `the model has: ${Object.keys(this.special).sort().join(", ") || "none"}`);
    }
    const key = JSON.stringify(allowed);
    let cut = this.cuts.get(key);
    if (!cut) {
      const later = new Set(this.values.normalized);
      cut = new NamedTokens([...Object.keys(this.values.added ?? {}), ...allowed].filter((name) => !later.has(name)), this.strip);
      this.cuts.set(key, cut);
    }
    return cut;
  }

  /** Ids of text that holds no named token, except those that are looked for after it was normalised. */
  private encodeStretch(text: string, place: Place, found: number[]): void {
    if (!text) return;
    text = this.normal(text);
    let done = 0;
    for (const [start, end, form] of this.normalCut.places(text)) {
      this.encodeMerged(text.slice(done, start), done ? "between" : place, found);
      found.push(this.normalIds.get(form)!);
      done = end;
    }
    this.encodeMerged(text.slice(done), done ? "between" : place, found);
  }

  /** Normalised text, with the space in front that is part of normalising ("always"). */
  private normal(text: string): string {
    const { normalization, space_symbol: symbol } = this.values;
    if (normalization) text = text.normalize(normalization);
    if (symbol) text = text.replaceAll(symbol, " ");
    return this.prefixSpace === "always" ? " " + text : text;
  }

  /** Ids of normalised text without any named token. */
  private encodeMerged(text: string, place: Place, found: number[]): void {
    if (!text) return;
    const spaced = this.prefixSpace === "each" || (this.prefixSpace === "first" && place === "start");
    if (spaced && !text.startsWith(" ")) text = " " + text;
    let ranks = this.ranksOf(text);
    if (!this.table) {
      for (const rank of ranks) found.push(rank);
      return;
    }
    if (ranks.some((rank) => this.isGap(rank))) ranks = this.ranksOf(this.withoutUnknown(text));
    for (const rank of ranks) found.push(...this.table[rank]!);
  }

  private ranksOf(text: string): number[] {
    const found: number[] = [];
    for (const [piece] of text.matchAll(this.pieces)) {
      if (!piece) continue;
      let ranks = this.known.get(piece);
      if (ranks === undefined) {
        ranks = mergeBytes(binary(new TextEncoder().encode(piece)), this.ranks);
        if (this.known.size < MOST_KNOWN && piece.length < 64) this.known.set(piece, ranks);
      }
      for (const rank of ranks) found.push(rank);
    }
    return found;
  }

  private isGap(rank: number): boolean {
    return this.table![rank]!.length === 0;
  }

  /** The text less the characters that have no id. */
  private withoutUnknown(text: string): string {
    const unknown = new Set([...new Set(text)].filter((character) => this.ranksOf(character).some((rank) => this.isGap(rank))));
    if (!this.values.drop_unknown) {
      const first = [...text].find((character) => unknown.has(character));
      throw new OptionError(`the model's vocabulary has nothing for ${shown(first)}`, "leave it out of the text");
    }
    return [...text].filter((character) => !unknown.has(character)).join("");
  }

  private bytesOf(id: number): Uint8Array | undefined {
    if (!this.bytes.length) this.bytes = this.makeBytes();
    return this.bytes[id];
  }

  private makeBytes(): (Uint8Array | undefined)[] {
    const table: (Uint8Array | undefined)[] = new Array(this.vocabSize);
    for (const [id, token] of Object.entries(this.values.decode_only ?? {})) table[Number(id)] = unbinary(decoded(token));
    let rank = 0;
    for (const token of this.ranks.keys()) {
      const entry = this.table ? this.table[rank]! : [rank];
      if (entry.length === 1) table[entry[0]!] = unbinary(token);
      rank++;
    }
    for (const [text, id] of this.named) {
      table[id] = new TextEncoder().encode(this.values.space_symbol ? text.replaceAll(this.values.space_symbol, " ") : text);
    }
    return table;
  }

  private largestId(): number {
    let largest = 0;
    const see = (id: number): void => {
      if (!Number.isInteger(id) || id < 0) throw new TokenizerError("a token id of the tokenizer is not a whole number from 0", "make it again");
      largest = Math.max(largest, id);
    };
    if (this.table) for (const entry of this.table) entry.forEach(see);
    else see(this.ranks.size - 1);
    for (const id of this.named.values()) see(id);
    for (const id of Object.keys(this.values.decode_only ?? {})) see(Number(id));
    return largest;
  }
}

/** Base64 as a string of characters 0 to 255. */
function decoded(base64: string): string {
  try {
    return atob(base64);
  } catch {
    throw new TokenizerError(`the tokenizer has a token ${shown(base64)} that is not base64`, "export the model again");
  }
}

function binary(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return text;
}

function unbinary(text: string): Uint8Array {
  return Uint8Array.from(text, (character) => character.charCodeAt(0));
}
