/** Vectors for texts: the states inside the model, pooled and normalised. */
export interface EmbedOptions {
  /** The state after the final norm, or token plus position embeddings. */
  layer?: "hidden" | "embeddings";
  /** The mean over tokens, the last token, or `none`: a vector for each token. */
  pooling?: "mean" | "last" | "none";
  /** Give vectors of length 1. */
  normalize?: boolean;
  /** Put in front of every text, for models that want an instruction there. */
  prefix?: string;
}

/** One vector (width) of states, a row per token; or, without pooling, all of them. */
export function pooled(states: readonly Float32Array[], pooling: "mean" | "last" | "none", normalize: boolean): Float32Array[] {
  if (pooling === "none") return states.flatMap((state) => pooled([state], "last", normalize));
  const vector = Float32Array.from(states.at(-1)!);
  if (pooling === "mean") vector.forEach((_, i) => (vector[i] = states.reduce((sum, row) => sum + row[i]!, 0) / states.length));
  if (normalize) {
    const length = Math.max(Math.hypot(...vector), 1e-12);
    vector.forEach((value, i) => (vector[i] = value / length));
  }
  return [vector];
}
