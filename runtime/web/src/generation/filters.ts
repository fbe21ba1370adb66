/**
 * Which tokens stay in the draw: top-k, typical, top-p and min-p, in this order.
 *
 * Each filter leaves at least one token. Of equal tokens the lower id goes first. Only the few largest values are ever
 * sorted, since they all but always suffice. Sums are in float64, values in float32, as in the Python package.
 */

// Temperatures beyond cannot be told from these: they leave the best tokens, or all alike.
const COLDEST = 1e-30, HOTTEST = 1e30;
const FIRST_TRY = 256;
const { fround } = Math;

/** Candidates in order of their ids (null: every token), and their unnormalised probabilities. */
export interface Candidates {
  ids: Int32Array | null;
  weights: Float32Array;
}

/** Filter logits (vocab), which are below infinity and in part above -infinity. `temperature` is above 0. */
export function filtered(
  logits: Float32Array, temperature: number, topK: number, typicalP: number, topP: number, minP: number,
): Candidates {
  const best = maximum(logits), by = fround(Math.min(Math.max(temperature, COLDEST), HOTTEST));
  let scaled = logits.map((logit) => fround(logit - best) / by);
  let ids: Int32Array | null = null;
  if (topK > 0 && topK < scaled.length) {
    ids = largest(scaled, topK);
    scaled = taken(scaled, ids);
  }
  let weights = scaled.map(Math.exp);
  const keep = (kept: Int32Array): void => {
    ids = ids ? taken(ids, kept) : kept;
    weights = taken(weights, kept);
  };
  if (typicalP < 1) keep(typical(weights, typicalP));
  if (topP < 1) keep(nucleus(weights, topP));
  if (minP > 0) {
    const least = fround(fround(minP) * maximum(weights));
    keep(indices(weights, (weight) => weight >= least));
  }
  return { ids, weights };
}

/** Indices, ascending, of the fewest largest weights that reach `topP` of the sum. (Holtzman et al. 2019) */
export function nucleus(weights: Float32Array, topP: number): Int32Array {
  const goal = topP * sum(weights);
  for (const size of sizes(weights.length)) {
    const best = taken(weights, largest(weights, size)).sort().reverse();
    if (size === weights.length || sum(best) >= goal) return largest(weights, Math.min(reaching(best, goal) + 1, size));
  }
  return new Int32Array(0);
}

/** Indices, ascending, of the tokens whose surprise is nearest to the entropy and that reach `typicalP`. (Meister et al. 2022) */
export function typical(weights: Float32Array, typicalP: number): Int32Array {
  const possible = indices(weights, (weight) => weight > 0);
  const present = taken(weights, possible);
  const total = sum(present), logTotal = fround(Math.log(total));
  const surprise = present.map((weight) => logTotal - fround(Math.log(weight)));
  let entropy = 0;
  present.forEach((weight, i) => (entropy += weight * surprise[i]!));
  const middle = fround(fround(entropy) / total);
  const closeness = surprise.map((value) => -Math.abs(fround(value - middle)));
  for (const size of sizes(present.length)) {
    const best = largest(closeness, size).sort((a, b) => closeness[b]! - closeness[a]!);
    const inOrder = taken(present, best);
    if (size === present.length || sum(inOrder) >= typicalP * total) {
      return taken(possible, largest(closeness, Math.min(reaching(inOrder, typicalP * total) + 1, size)));
    }
  }
  return possible;
}

/** How many of the first to look at: few, and more only where those do not suffice. */
function* sizes(most: number): Generator<number> {
  for (let size = FIRST_TRY; size < most; size *= 16) yield size;
  yield most;
}

/**
 * First index at which the running sum of `weights` is `goal` or more (`beyond`: more than `goal`). Where rounding
 * leaves none, the last index that adds anything.
 */
export function reaching(weights: Float32Array, goal: number, beyond = false): number {
  let running = 0, last = 0;
  for (let i = 0; i < weights.length; i++) {
    if (weights[i]! > 0) last = i;
    running += weights[i]!;
    if (beyond ? running > goal : running >= goal) return i;
  }
  return last;
}

/** Indices, ascending, of the `count` largest values (1 to all); of equal ones the first. */
export function largest(values: Float32Array | Float64Array, count: number): Int32Array {
  if (count >= values.length) return Int32Array.from(values, (_, i) => i);
  const threshold = nthLargest(values, count);
  let above = 0;
  for (const value of values) if (value > threshold) above++;
  let equal = count - above, at = 0;
  const found = new Int32Array(count);
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (value > threshold || (value === threshold && equal-- > 0)) found[at++] = i;
  }
  return found;
}

/** The `count`-th largest value, by Hoare's selection. */
function nthLargest(values: Float32Array | Float64Array, count: number): number {
  const v = values.slice(), at = count - 1;
  let low = 0, high = v.length - 1;
  while (low < high) {
    const pivot = v[(low + high) >> 1]!;
    let i = low, j = high;
    while (i <= j) {
      while (v[i]! > pivot) i++;
      while (v[j]! < pivot) j--;
      if (i <= j) {
        const t = v[i]!;
        v[i++] = v[j]!;
        v[j--] = t;
      }
    }
    if (at <= j) high = j;
    else if (at >= i) low = i;
    else break;
  }
  return v[at]!;
}

export function maximum(values: Float32Array): number {
  let best = -Infinity;
  for (const value of values) if (value > best) best = value;
  return best;
}

export function sum(values: Float32Array): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

function indices(values: Float32Array, wanted: (value: number) => boolean): Int32Array {
  const found: number[] = [];
  for (let i = 0; i < values.length; i++) if (wanted(values[i]!)) found.push(i);
  return Int32Array.from(found);
}

function taken<T extends Float32Array | Int32Array>(values: T, at: Int32Array): T {
  const found = values.slice(0, at.length) as T;
  at.forEach((from, to) => (found[to] = values[from]!));
  return found;
}
