import { largest } from "./filters.js";

/** log(sum(exp(logits))). */
export function logSumExp(logits: Float32Array): number {
  let best = -Infinity, total = 0;
  for (const logit of logits) if (logit > best) best = logit;
  for (const logit of logits) total += Math.exp(logit - best);
  return best + Math.log(total);
}

/** Natural log-probability of token `id`, and the `count` likeliest tokens with theirs, best first. */
export function topLogprobs(logits: Float32Array, id: number, count: number): [number, [number, number][]] {
  const total = logSumExp(logits);
  const top = count > 0 ? [...largest(logits, Math.min(count, logits.length))] : [];
  top.sort((a, b) => logits[b]! - logits[a]! || a - b);
  return [logits[id]! - total, top.map((index) => [index, logits[index]! - total])];
}
