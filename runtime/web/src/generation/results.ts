/** `end`: the model ended the text. `stop`: a stop string, or the form is complete. */
export type FinishReason = "stop" | "length" | "end" | "context" | "time" | "cancelled";

/**
 * What one token adds. The last piece of a text carries `finishReason` and any text held back; its `tokenId` is null
 * where it stands for no token of the text.
 */
export interface Piece {
  text: string;
  tokenId: number | null;
  /** The end token that ended the text, in a last piece. */
  endId: number | null;
  /** Natural log-probability under the unmodified model, where asked for. */
  logprob: number | null;
  /** The likeliest (token id, log-probability), where asked for. */
  topLogprobs: [number, number][];
  finishReason: FinishReason | null;
  /** Which text of several this belongs to. */
  row: number;
}

/** Counts of one call. */
export interface Stats {
  promptTokens: number;
  tokens: number;
  /** Runs of the model. */
  passes: number;
  drafted: number;
  accepted: number;
  firstTokenSeconds: number;
  seconds: number;
}

/** A finished text. The prompt is not part of it; nor is an end token, or (in `text`) a stop string. */
export interface Generation {
  text: string;
  tokenIds: number[];
  finishReason: FinishReason;
  /** Natural log-probability of each token, where asked for. */
  logprobs: number[] | null;
  topLogprobs: [number, number][][] | null;
  /** Counts of the whole call, shared by all texts of it. */
  stats: Stats;
}

export function newStats(): Stats {
  return { promptTokens: 0, tokens: 0, passes: 0, drafted: 0, accepted: 0, firstTokenSeconds: 0, seconds: 0 };
}

/** Tokens after the first, over the time after the first; 0 where there is one token or none. */
export function tokensPerSecond(stats: Stats): number {
  const rest = stats.seconds - stats.firstTokenSeconds;
  return stats.tokens > 1 && rest > 0 ? (stats.tokens - 1) / rest : 0;
}

/** The text that `pieces` of one row make. */
export function finished(pieces: readonly Piece[], logprobs: number | undefined, stats: Stats): Generation {
  const tokens = pieces.filter((piece) => piece.tokenId !== null);
  return {
    text: pieces.map((piece) => piece.text).join(""),
    tokenIds: tokens.map((piece) => piece.tokenId!),
    finishReason: pieces.at(-1)?.finishReason ?? "length",
    logprobs: logprobs === undefined ? null : tokens.map((piece) => piece.logprob!),
    topLogprobs: logprobs ? tokens.map((piece) => piece.topLogprobs) : null,
    stats,
  };
}
