/**
 * From logits to a token: a pure function of (logits, seed, sample, position), the same as the Python package's.
 *
 * Order: `processor`, `logitBias`, penalties, `bannedTokens`, constraint, `temperature`, `topK`, `typicalP`, `topP`,
 * `minP`, draw. `forcedTokens` come before everything else.
 */
import { NumericsError, OptionError } from "../errors.js";
import type { ConstraintState } from "./constraint.js";
import { filtered, maximum, reaching, sum } from "./filters.js";
import type { Sampling } from "./options.js";
import { randomSeed, uniform } from "./philox.js";

const LARGEST = 3.4028234663852886e38;

/** Chooses tokens for one text. `sample` tells apart several texts from the same prompt and seed. */
export class Sampler {
  private readonly seed: bigint;

  constructor(
    private readonly options: Sampling,
    private readonly sample = 0,
    private readonly constraint: ConstraintState | null = null,
  ) {
    this.seed = options.seed ?? randomSeed();
  }

  /** Whether a constraint leaves nothing to follow the tokens made so far. */
  complete(made: Int32Array): boolean {
    return this.constraint !== null && this.constraint.complete(made);
  }

  /**
   * The token that follows `ids`, of which the first `promptLength` are the prompt, given logits (vocab), which stay
   * as they are. Throws NumericsError where they are NaN or infinite.
   */
  async choose(logits: Float32Array, ids: Int32Array, promptLength: number): Promise<number> {
    const { options } = this, made = ids.length - promptLength;
    if (!logits.every(Number.isFinite)) {
      throw new NumericsError(`the model's logits for token ${made + 1} are not finite`, "check the model with verify()");
    }
    if (made < options.forcedTokens.length) return options.forcedTokens[made]!;
    const adjusted = await this.adjusted(logits, ids, promptLength);
    if (options.temperature === 0) return adjusted.indexOf(maximum(adjusted));
    const { ids: candidates, weights } = filtered(adjusted, options.temperature, options.topK, options.typicalP, options.topP, options.minP);
    const index = weights.length === 1 ? 0 : drawn(weights, uniform(this.seed, this.sample, ids.length));
    return candidates ? candidates[index]! : index;
  }

  /** Logits after everything that changes or forbids single tokens. */
  private async adjusted(logits: Float32Array, ids: Int32Array, promptLength: number): Promise<Float32Array> {
    const { options } = this;
    logits = options.processor ? processed(await options.processor(ids.slice(), logits.slice()), logits.length) : logits.slice();
    for (const [id, bias] of options.logitBias) logits[id] = bounded(logits[id]! + bias);
    penalise(logits, ids, options);
    for (const id of options.bannedTokens) logits[id] = -Infinity;
    this.constraint?.restrict(logits, ids.subarray(promptLength));
    if (maximum(logits) === -Infinity) throw new OptionError("the options forbid every token", "allow at least one");
    return logits;
  }
}

function processed(result: Float32Array, length: number): Float32Array {
  if (!(result instanceof Float32Array) || result.length !== length) {
    throw new OptionError("processor did not return logits", `return a Float32Array of ${length}`);
  }
  if (result.some((value) => Number.isNaN(value) || value > LARGEST)) {
    throw new NumericsError("processor returned NaN, or a number above float32's", "return numbers, or -Infinity to forbid a token");
  }
  return result;
}

/** A number held inside float32's range; -Infinity stays. */
function bounded(value: number): number {
  return value === -Infinity ? value : Math.min(Math.max(value, -LARGEST), LARGEST);
}

function penalise(logits: Float32Array, ids: Int32Array, options: Sampling): void {
  const { repeatPenalty, repeatLastN, frequencyPenalty, presencePenalty } = options;
  if (repeatPenalty === 1 && !frequencyPenalty && !presencePenalty) return;
  const recent = repeatLastN < 0 ? ids : ids.subarray(Math.max(0, ids.length - repeatLastN));
  const counts = new Map<number, number>();
  for (const id of recent) counts.set(id, (counts.get(id) ?? 0) + 1);
  for (const [id, count] of counts) {
    let logit = logits[id]!;
    if (logit === -Infinity) continue;
    logit = logit > 0 ? logit / repeatPenalty : logit * repeatPenalty;
    // A merely penalised token does not become a forbidden one.
    logits[id] = bounded(Math.max(logit - frequencyPenalty * count - presencePenalty, -LARGEST));
  }
}

/** Index at which the running sum of `weights` passes `fraction` of the total; its weight is never 0. */
function drawn(weights: Float32Array, fraction: number): number {
  return reaching(weights, fraction * sum(weights), true);
}
