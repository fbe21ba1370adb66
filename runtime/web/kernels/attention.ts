// Causal attention over keys and values that lie in pages of PAGE tokens.
import { dot } from "./float32";
import { exp4, sumF32, tanh4 } from "./vector";

/** Tokens in a page. A page holds, for each layer, keys (kv heads, PAGE, dim) and then values of the same shape. */
export const PAGE: usize = 64;

/**
 * `m` queries at positions from `position` on, heads `h0` to `h1`: y (m, heads * dim). Row g of q begins at
 * q + g * stride floats with the heads' queries. `pages` lists where this layer's part of each page begins. A query
 * sees the last `window` tokens (0: all). `scores` has room for a float per token.
 */
export function attend(
  q: usize, stride: usize, pages: usize, y: usize, scores: usize, m: usize, position: usize,
  heads: usize, kvHeads: usize, dim: usize, scale: f32, softcap: f32, window: usize, h0: usize, h1: usize,
): void {
  for (let h = h0; h < h1; h++) {
    const part = PAGE * 4 * dim * (h / (heads / kvHeads)), values = PAGE * 4 * dim * kvHeads + part;
    for (let g: usize = 0; g < m; g++) {
      const end = position + g + 1, start: usize = window && end > window ? end - window : 0;
      const big = score(q + 4 * (g * stride + h * dim), pages, part, scores, start, end, dim, scale, softcap);
      const sum = exponentials(scores, start, end, big);
      mix(pages, values, scores, y + 4 * (g * heads + h) * dim, start, end, dim, sum);
    }
  }
}

/** Products of a query with the keys from `start` to `end`, scaled and capped; gives the largest. */
function score(a: usize, pages: usize, part: usize, scores: usize, start: usize, end: usize, dim: usize, scale: f32, softcap: f32): f32 {
  let big: f32 = -Infinity;
  for (let j = start; j < end; ) {
    const stop = min(end, (j / PAGE + 1) * PAGE);
    let key = <usize>load<u32>(pages + 4 * (j / PAGE)) + part + 4 * dim * (j % PAGE);
    for (; j < stop; j++, key += 4 * dim) {
      let s = dot(a, key, dim) * scale;
      if (softcap) s = softcap * f32x4.extract_lane(tanh4(f32x4.splat(s / softcap)), 0);
      store<f32>(scores + 4 * j, s);
      big = max(big, s);
    }
  }
  return big;
}

function exponentials(scores: usize, start: usize, end: usize, big: f32): f32 {
  let sums = f32x4.splat(0), j = start;
  for (; j + 4 <= end; j += 4) {
    const e = exp4(f32x4.sub(v128.load(scores + 4 * j), f32x4.splat(big)));
    v128.store(scores + 4 * j, e);
    sums = f32x4.add(sums, e);
  }
  let sum = sumF32(sums);
  for (; j < end; j++) {
    const e = f32x4.extract_lane(exp4(f32x4.splat(load<f32>(scores + 4 * j) - big)), 0);
    store<f32>(scores + 4 * j, e);
    sum += e;
  }
  return sum;
}

function mix(pages: usize, part: usize, scores: usize, y: usize, start: usize, end: usize, dim: usize, sum: f32): void {
  let i: usize = 0;
  for (; i + 16 <= dim; i += 16) {
    let a0 = f32x4.splat(0), a1 = f32x4.splat(0), a2 = f32x4.splat(0), a3 = f32x4.splat(0);
    for (let j = start; j < end; ) {
      const stop = min(end, (j / PAGE + 1) * PAGE);
      let value = <usize>load<u32>(pages + 4 * (j / PAGE)) + part + 4 * (dim * (j % PAGE) + i);
      for (; j < stop; j++, value += 4 * dim) {
        const c = v128.load32_splat(scores + 4 * j);
        a0 = f32x4.add(a0, f32x4.mul(c, v128.load(value)));
        a1 = f32x4.add(a1, f32x4.mul(c, v128.load(value, 16)));
        a2 = f32x4.add(a2, f32x4.mul(c, v128.load(value, 32)));
        a3 = f32x4.add(a3, f32x4.mul(c, v128.load(value, 48)));
      }
    }
    const by = f32x4.splat(1 / sum), o = y + 4 * i;
    v128.store(o, f32x4.mul(a0, by)); v128.store(o, f32x4.mul(a1, by), 16);
    v128.store(o, f32x4.mul(a2, by), 32); v128.store(o, f32x4.mul(a3, by), 48);
  }
  for (; i < dim; i++) {
    let a: f32 = 0;
    for (let j = start; j < end; j++) {
      a += load<f32>(scores + 4 * j) * load<f32>(<usize>load<u32>(pages + 4 * (j / PAGE)) + part + 4 * (dim * (j % PAGE) + i));
    }
    store<f32>(y + 4 * i, a * (1 / sum));
  }
}
