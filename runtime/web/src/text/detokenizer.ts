import type { Tokenizer } from "./tokenizer.js";

/** Turns one token at a time into the text that is complete so far: a token may end inside a character. */
export class Detokenizer {
  private readonly decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  constructor(
    private readonly tokenizer: Tokenizer, private readonly keepSpecial = false,
  ) {}

  /** The text that `id` completes; empty while a character is unfinished. */
  feed(id: number): string {
    return this.decoder.decode(this.tokenizer.decodeBytes([id], !this.keepSpecial), { stream: true });
  }

  /** What is left at the end: U+FFFD for a character that never became whole. */
  flush(): string {
    return this.decoder.decode();
  }
}
