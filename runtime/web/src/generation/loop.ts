/** The generation loop: window, logits, sample, stop, repeat. */
import { OptionError } from "../errors.js";
import type { Decoder } from "./decoder.js";
import type { Limits } from "./options.js";
import type { FinishReason, Piece, Stats } from "./results.js";
import type { Sequence } from "./sequence.js";

/** Lets timers, messages and other work of this thread have their turn. */
export type Breathe = () => Promise<void>;

/** Advance each of `sequences` in turn until it is finished, yielding a piece per token; fills `stats` along the way. */
export async function* run(
  decoder: Decoder, sequences: readonly Sequence[], limits: Limits, stats: Stats, cancelled: () => boolean, breathe: Breathe,
): AsyncGenerator<Piece> {
  const started = performance.now(), seconds = (): number => (performance.now() - started) / 1000;
  const context = decoder.contextLength;
  stats.promptTokens = sequences.reduce((sum, { promptLength }) => sum + promptLength, 0);
  checkContext(sequences, limits, context);
  for (const sequence of sequences) {
    const refusal = refused(sequence, limits, context);
    if (refusal) yield sequence.finish(refusal);
    while (!sequence.finishReason) {
      await breathe();
      const reason = cancelled() ? "cancelled" : limits.maxTime !== undefined && seconds() >= limits.maxTime ? "time" : null;
      if (reason) {
        yield sequence.finish(reason);
        break;
      }
      const [window, count] = sequence.nextWindow(context);
      const logits = await decoder.logits(window, count);
      stats.passes++;
      for await (const piece of sequence.accept(logits, context, decoder.passCost)) {
        if (piece.tokenId !== null) stats.tokens++;
        stats.seconds = seconds();
        stats.firstTokenSeconds ||= stats.seconds;
        yield piece;
      }
      stats.drafted += sequence.drafted;
      stats.accepted += sequence.accepted;
    }
  }
  stats.seconds = seconds();
}

/** Why a text may not have a single token. */
function refused(sequence: Sequence, limits: Limits, context: number): FinishReason | null {
  if (limits.maxNewTokens === 0) return "length";
  return limits.overflow === "stop" && sequence.promptLength >= context ? "context" : null;
}

function checkContext(sequences: readonly Sequence[], limits: Limits, context: number): void {
  const longest = Math.max(0, ...sequences.map(({ promptLength }) => promptLength));
  if (limits.overflow === "error" && longest + limits.maxNewTokens > context) {
    throw new OptionError(
      `a prompt of ${longest} tokens and ${limits.maxNewTokens} new ones exceed the context of ${context}`,
      "shorten the prompt, ask for fewer tokens, or let the window slide",
    );
  }
}
