/** One text in the making: its ids, its limits, and the pieces that its tokens become. */
import { OptionError } from "../errors.js";
import { Detokenizer } from "../text/detokenizer.js";
import { StopStrings } from "../text/stopStrings.js";
import type { Tokenizer } from "../text/tokenizer.js";
import { shown } from "../validation.js";
import { topLogprobs } from "./logprobs.js";
import type { Limits } from "./options.js";
import { draft, DraftLength } from "./promptLookup.js";
import type { FinishReason, Piece } from "./results.js";
import type { Sampler } from "./sampler.js";

const AUTO_DRAFT = 16;

export class Sequence {
  finishReason: FinishReason | null = null;
  drafted = 0;
  accepted = 0;
  readonly promptLength: number;
  private length: number;
  private buffer: Int32Array;
  private readonly ends: ReadonlySet<number>;
  private readonly text: TextStream | null;
  private readonly draftLength: DraftLength | null;
  private draft = new Int32Array(0);

  constructor(
    prompt: Int32Array, private readonly sampler: Sampler, private readonly limits: Limits, endIds: readonly number[],
    tokenizer: Tokenizer | null, private readonly row: number,
  ) {
    this.promptLength = this.length = prompt.length;
    this.buffer = new Int32Array(prompt.length + Math.min(limits.maxNewTokens, 4096) + 1);
    this.buffer.set(prompt);
    this.ends = new Set(endIds);
    if (limits.stop.length && !tokenizer) throw new OptionError(`stop is ${shown(limits.stop)}`, "stop strings need a model with a tokenizer");
    this.text = tokenizer ? new TextStream(tokenizer, limits) : null;
    const automatic = limits.lookup === "auto", most = automatic ? AUTO_DRAFT : (limits.lookup as number);
    this.draftLength = most ? new DraftLength(most, !automatic) : null;
  }

  /** Prompt and generated tokens. */
  get ids(): Int32Array {
    return this.buffer.subarray(0, this.length);
  }

  /**
   * What the model should see now, draft included, and for how many last positions logits are wanted. A draft that
   * would push tokens out of the window is cut, since the plain loop would still see them.
   */
  nextWindow(contextLength: number): [Int32Array, number] {
    const window = this.ids.subarray(Math.max(0, this.length - contextLength));
    this.draft = this.makeDraft(window, contextLength - window.length);
    const fed = new Int32Array(window.length + this.draft.length);
    fed.set(window);
    fed.set(this.draft, window.length);
    return [fed, this.draft.length + 1];
  }

  private makeDraft(window: Int32Array, room: number): Int32Array<ArrayBuffer> {
    const left = this.limits.maxNewTokens - (this.length - this.promptLength) - 1;
    const most = this.draftLength ? Math.min(this.draftLength.next(), room, left) : 0;
    return most > 0 ? draft(window, most, this.limits.reference).slice() : new Int32Array(0);
  }

  /** Sample from logits, a row for each position wanted, as long as the draft agrees; gives the pieces. */
  async *accept(logits: readonly Float32Array[], contextLength: number, passCost: number): AsyncGenerator<Piece> {
    let accepted = 0;
    for (const [position, row] of logits.entries()) {
      const id = await this.sampler.choose(row, this.ids, this.promptLength);
      const agrees = position < this.draft.length && id === this.draft[position];
      if (agrees) accepted++;
      yield this.append(id, row, contextLength);
      if (this.finishReason || !agrees) break;
    }
    [this.drafted, this.accepted] = [this.draft.length, accepted];
    this.draftLength?.update(passCost, this.drafted, accepted);
  }

  private append(id: number, logits: Float32Array, contextLength: number): Piece {
    const { logprobs, maxNewTokens, overflow } = this.limits;
    const [logprob, top] = logprobs === undefined ? [null, []] : topLogprobs(logits, id, logprobs);
    if (this.ends.has(id)) return { ...this.finish("end"), endId: id, logprob, topLogprobs: top };
    if (this.length === this.buffer.length) {
      const larger = new Int32Array(2 * this.length);
      larger.set(this.buffer);
      this.buffer = larger;
    }
    this.buffer[this.length++] = id;
    let [text, stopped] = this.text ? this.text.feed(id) : ["", false];
    if (stopped || this.sampler.complete(this.ids.subarray(this.promptLength))) this.finishReason = "stop";
    else if (this.length - this.promptLength >= maxNewTokens) this.finishReason = "length";
    else if (overflow === "stop" && this.length >= contextLength) this.finishReason = "context";
    if (this.finishReason && !stopped && this.text) text += this.text.flush();
    return { text, tokenId: id, endId: null, logprob, topLogprobs: top, finishReason: this.finishReason, row: this.row };
  }

  /** End this text without a further token. */
  finish(reason: FinishReason): Piece {
    this.finishReason = reason;
    return { text: this.text?.flush() ?? "", tokenId: null, endId: null, logprob: null, topLogprobs: [], finishReason: reason, row: this.row };
  }
}

/** Tokens to text that may be shown: whole characters, up to a stop string. */
class TextStream {
  private readonly detokenizer: Detokenizer;
  private readonly stops: StopStrings;

  constructor(tokenizer: Tokenizer, { stop, keepSpecial }: Limits) {
    this.detokenizer = new Detokenizer(tokenizer, keepSpecial);
    this.stops = new StopStrings(stop);
  }

  feed(id: number): [string, boolean] {
    return this.stops.feed(this.detokenizer.feed(id));
  }

  flush(): string {
    const [text, stopped] = this.stops.feed(this.detokenizer.flush());
    return stopped ? text : text + this.stops.flush();
  }
}
