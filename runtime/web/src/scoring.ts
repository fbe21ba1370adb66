/** How well a model predicts a given text. */
import { NumericsError, OptionError } from "./errors.js";
import type { Decoder } from "./generation/decoder.js";
import { topLogprobs } from "./generation/logprobs.js";
import { whole } from "./validation.js";

/** `logprobs[i]` is the natural log-probability of `tokenIds[i + 1]`; the first token has none. */
export interface Score {
  tokenIds: number[];
  logprobs: number[];
  /** exp of the mean negative log-probability per token. */
  perplexity: number;
  /** Negative log2-probabilities over the UTF-8 bytes of the predicted text; NaN without a tokenizer. */
  bitsPerByte: number;
  /** The likeliest (token id, log-probability) in place of each of `tokenIds` after the first, where asked for. */
  topLogprobs: [number, number][][] | null;
}

export interface ScoreOptions {
  /** Tokens that one pass scores; default half the context. */
  stride?: number;
  /** So many of the likeliest tokens of each place. */
  topLogprobs?: number;
}

type Scored = [logprob: number, top: [number, number][]];

/**
 * Log-probabilities of ids[1:] given all that the context allows before each. A pass scores up to `stride` tokens
 * (default half the context); each with the likeliest tokens of its place. Throws OptionError for fewer than two tokens.
 */
export async function scoreIds(decoder: Decoder, ids: Int32Array, { stride, topLogprobs: count = 0 }: ScoreOptions, breathe: () => Promise<void>): Promise<Scored[]> {
  whole("topLogprobs", count, 0);
  if (ids.length < 2) throw new OptionError(`the text has ${ids.length} tokens`, "give at least two, the first is not scored");
  const context = decoder.contextLength, step = stride ?? Math.max(1, context >> 1);
  whole("stride", step, 1, context);
  const found: Scored[] = [];
  for (let start = 0; start < ids.length - 1; start += step) {
    await breathe();
    const end = Math.min(start + step, ids.length - 1);
    const logits = await decoder.logits(ids.subarray(Math.max(0, end - context), end), end - start);
    logits.forEach((row, i) => found.push(topLogprobs(row, ids[start + 1 + i]!, count)));
    if (found.slice(start).some(([value]) => !Number.isFinite(value))) {
      throw new NumericsError(`the model's logits between tokens ${start} and ${end} are not finite`, "check the model with verify()");
    }
  }
  return found;
}

/** What the log-probabilities of a text of `bytes` bytes (0: unknown) come to. */
export function makeScore(ids: Int32Array, scored: readonly Scored[], bytes: number, top: boolean): Score {
  const logprobs = scored.map(([value]) => value);
  const total = logprobs.reduce((a, b) => a + b, 0);
  return { tokenIds: [...ids], logprobs, perplexity: Math.exp(-total / logprobs.length), bitsPerByte: bytes ? -total / Math.LN2 / bytes : NaN, topLogprobs: top ? scored.map(([, tokens]) => tokens) : null };
}
