// What happens between the products: norms, rotation, activations, sums.
import { erf4, exp4, sumF32, tanh4 } from "./vector";

export const RELU = 0, GELU = 1, GELU_TANH = 2, SILU = 3;

/** Root mean square norm of each row of x (m, n). */
export function rmsNorm(x: usize, gain: usize, y: usize, m: usize, n: usize, eps: f32): void {
  for (let g: usize = 0; g < m; g++, x += 4 * n, y += 4 * n) {
    let s = f32x4.splat(0), t = f32x4.splat(0), i: usize = 0;
    for (; i + 8 <= n; i += 8) {
      const v = v128.load(x + 4 * i), w = v128.load(x + 4 * i, 16);
      s = f32x4.add(s, f32x4.mul(v, v));
      t = f32x4.add(t, f32x4.mul(w, w));
    }
    let sum = sumF32(f32x4.add(s, t));
    for (; i < n; i++) { const v = load<f32>(x + 4 * i); sum += v * v; }
    const by = <f32>1 / sqrt(sum / <f32>n + eps), by4 = f32x4.splat(by);
    for (i = 0; i + 4 <= n; i += 4) v128.store(y + 4 * i, f32x4.mul(f32x4.mul(v128.load(x + 4 * i), by4), v128.load(gain + 4 * i)));
    for (; i < n; i++) store<f32>(y + 4 * i, load<f32>(x + 4 * i) * by * load<f32>(gain + 4 * i));
  }
}

/** Layer norm of each row of x (m, n); `bias` 0: none. */
export function layerNorm(x: usize, gain: usize, bias: usize, y: usize, m: usize, n: usize, eps: f32): void {
  for (let g: usize = 0; g < m; g++, x += 4 * n, y += 4 * n) {
    let s = f32x4.splat(0), i: usize = 0;
    for (; i + 4 <= n; i += 4) s = f32x4.add(s, v128.load(x + 4 * i));
    let sum = sumF32(s);
    for (; i < n; i++) sum += load<f32>(x + 4 * i);
    const mean = sum / <f32>n, mean4 = f32x4.splat(mean);
    s = f32x4.splat(0);
    for (i = 0; i + 4 <= n; i += 4) { const v = f32x4.sub(v128.load(x + 4 * i), mean4); s = f32x4.add(s, f32x4.mul(v, v)); }
    sum = sumF32(s);
    for (; i < n; i++) { const v = load<f32>(x + 4 * i) - mean; sum += v * v; }
    const by = <f32>1 / sqrt(sum / <f32>n + eps);
    for (i = 0; i < n; i++) {
      const v = (load<f32>(x + 4 * i) - mean) * by * load<f32>(gain + 4 * i);
      store<f32>(y + 4 * i, bias ? v + load<f32>(bias + 4 * i) : v);
    }
  }
}

/**
 * Rotate the first 2 * half features of `heads` heads of `dim` in each of m rows of `stride` floats, the row at
 * position p by row p of the tables cos and sin (context, half). Features are paired as (i, i + half).
 */
export function rotate(x: usize, cos: usize, sin: usize, m: usize, position: usize, heads: usize, dim: usize, half: usize, stride: usize): void {
  for (let g: usize = 0; g < m; g++) {
    const c = cos + 4 * (position + g) * half, s = sin + 4 * (position + g) * half;
    for (let h: usize = 0; h < heads; h++) {
      const a = x + 4 * (g * stride + h * dim), b = a + 4 * half;
      let i: usize = 0;
      for (; i + 4 <= half; i += 4) {
        const p = v128.load(a + 4 * i), q = v128.load(b + 4 * i), cc = v128.load(c + 4 * i), ss = v128.load(s + 4 * i);
        v128.store(a + 4 * i, f32x4.sub(f32x4.mul(p, cc), f32x4.mul(q, ss)));
        v128.store(b + 4 * i, f32x4.add(f32x4.mul(q, cc), f32x4.mul(p, ss)));
      }
      for (; i < half; i++) {
        const p = load<f32>(a + 4 * i), q = load<f32>(b + 4 * i), cc = load<f32>(c + 4 * i), ss = load<f32>(s + 4 * i);
        store<f32>(a + 4 * i, p * cc - q * ss);
        store<f32>(b + 4 * i, q * cc + p * ss);
      }
    }
  }
}

// @ts-ignore: decorator
@inline function activation(kind: i32, x: v128): v128 {
  const one = f32x4.splat(1), half = f32x4.splat(0.5);
  if (kind == RELU) return f32x4.max(x, f32x4.splat(0));
  if (kind == SILU) return f32x4.div(x, f32x4.add(one, exp4(f32x4.neg(x))));
  if (kind == GELU) return f32x4.mul(f32x4.mul(half, x), f32x4.add(one, erf4(f32x4.mul(x, f32x4.splat(0.70710678)))));
  const cube = f32x4.mul(f32x4.mul(x, x), x);
  const inner = f32x4.mul(f32x4.splat(0.79788456), f32x4.add(x, f32x4.mul(f32x4.splat(0.044715), cube)));
  return f32x4.mul(f32x4.mul(half, x), f32x4.add(one, tanh4(inner)));
}

/** y (m, n) = activation(x (m, n)); gated: activation of the first n of each 2 n features times the others. */
export function activate(kind: i32, gated: bool, x: usize, y: usize, m: usize, n: usize): void {
  const from = gated ? n * 2 : n;
  for (let g: usize = 0; g < m; g++) {
    const a = x + 4 * g * from, b = a + 4 * n, o = y + 4 * g * n;
    let i: usize = 0;
    for (; i + 4 <= n; i += 4) {
      const v = activation(kind, v128.load(a + 4 * i));
      v128.store(o + 4 * i, gated ? f32x4.mul(v, v128.load(b + 4 * i)) : v);
    }
    for (; i < n; i++) {
      const v = f32x4.extract_lane(activation(kind, v128.load32_splat(a + 4 * i)), 0);
      store<f32>(o + 4 * i, gated ? v * load<f32>(b + 4 * i) : v);
    }
  }
}

/** x (n) += y (n). */
export function add(x: usize, y: usize, n: usize): void {
  let i: usize = 0;
  for (; i + 4 <= n; i += 4) v128.store(x + 4 * i, f32x4.add(v128.load(x + 4 * i), v128.load(y + 4 * i)));
  for (; i < n; i++) store<f32>(x + 4 * i, load<f32>(x + 4 * i) + load<f32>(y + 4 * i));
}

/** Each row of x (m, n) += bias (n). */
export function addBias(x: usize, bias: usize, m: usize, n: usize): void {
  for (let g: usize = 0; g < m; g++) add(x + 4 * g * n, bias, n);
}

/** x (n) = cap * tanh(x / cap). */
export function softcap(x: usize, n: usize, cap: f32): void {
  for (let i: usize = 0; i < n; i++) {
    const p = x + 4 * i;
    store<f32>(p, cap * f32x4.extract_lane(tanh4(f32x4.splat(load<f32>(p) / cap)), 0));
  }
}

/** x (m, k) with the means of each 32 features after them, filled up with 0: y (m, padded). */
export function withMeans(x: usize, y: usize, m: usize, k: usize, size: usize, padded: usize): void {
  const blocks = k / size;
  for (let g: usize = 0; g < m; g++) {
    const a = x + 4 * g * k, o = y + 4 * g * padded;
    memory.copy(o, a, 4 * k);
    for (let b: usize = 0; b < blocks; b++) {
      let s = f32x4.splat(0);
      for (let i: usize = 0; i < size; i += 4) s = f32x4.add(s, v128.load(a + 4 * (size * b + i)));
      store<f32>(o + 4 * (k + b), sumF32(s) / <f32>size);
    }
    for (let i = k + blocks; i < padded; i++) store<f32>(o + 4 * i, 0);
  }
}
