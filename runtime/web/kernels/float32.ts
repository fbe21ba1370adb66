// Products with float32 matrices. A sum runs over the inputs in order, one accumulator per output, so a row of many
// is computed exactly like a row alone.
import { sumF32, sumsF32 } from "./vector";

/** y (m, n) = x (m, k) w, with w (k, n) as ONNX's MatMul has it; columns from `n0` to `n1`. `panel` holds 8 k floats. */
export function byColumns(x: usize, w: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize, panel: usize): void {
  if (m == 1) return oneByColumns(x, w, y, k, n, n0, n1);
  let c = n0;
  for (; c + 8 <= n1; c += 8) {
    for (let i: usize = 0; i < k; i++) {
      const from = w + 4 * (i * n + c), to = panel + 32 * i;
      v128.store(to, v128.load(from));
      v128.store(to, v128.load(from, 16), 16);
    }
    let g: usize = 0;
    for (; g + 4 <= m; g += 4) tile(x + 4 * g * k, panel, y + 4 * (g * n + c), k, n);
    for (; g < m; g++) column8(x + 4 * g * k, panel, y + 4 * (g * n + c), k);
  }
  for (let g: usize = 0; g < m; g++) {
    for (let j = c; j < n1; j++) {
      let sum: f32 = 0;
      for (let i: usize = 0; i < k; i++) sum += load<f32>(x + 4 * (g * k + i)) * load<f32>(w + 4 * (i * n + j));
      store<f32>(y + 4 * (g * n + j), sum);
    }
  }
}

/** Four rows by eight columns. */
// @ts-ignore: decorator
@inline function tile(x: usize, panel: usize, y: usize, k: usize, n: usize): void {
  let a0 = f32x4.splat(0), a1 = f32x4.splat(0), b0 = f32x4.splat(0), b1 = f32x4.splat(0);
  let c0 = f32x4.splat(0), c1 = f32x4.splat(0), d0 = f32x4.splat(0), d1 = f32x4.splat(0);
  const end = x + 4 * k, row = k * 4;
  for (; x < end; x += 4, panel += 32) {
    const w0 = v128.load(panel), w1 = v128.load(panel, 16);
    let s = v128.load32_splat(x);
    a0 = f32x4.add(a0, f32x4.mul(s, w0)); a1 = f32x4.add(a1, f32x4.mul(s, w1));
    s = v128.load32_splat(x + row);
    b0 = f32x4.add(b0, f32x4.mul(s, w0)); b1 = f32x4.add(b1, f32x4.mul(s, w1));
    s = v128.load32_splat(x + 2 * row);
    c0 = f32x4.add(c0, f32x4.mul(s, w0)); c1 = f32x4.add(c1, f32x4.mul(s, w1));
    s = v128.load32_splat(x + 3 * row);
    d0 = f32x4.add(d0, f32x4.mul(s, w0)); d1 = f32x4.add(d1, f32x4.mul(s, w1));
  }
  const out = n * 4;
  v128.store(y, a0); v128.store(y, a1, 16);
  v128.store(y + out, b0); v128.store(y + out, b1, 16);
  v128.store(y + 2 * out, c0); v128.store(y + 2 * out, c1, 16);
  v128.store(y + 3 * out, d0); v128.store(y + 3 * out, d1, 16);
}

// @ts-ignore: decorator
@inline function column8(x: usize, panel: usize, y: usize, k: usize): void {
  let a0 = f32x4.splat(0), a1 = f32x4.splat(0);
  for (const end = x + 4 * k; x < end; x += 4, panel += 32) {
    const s = v128.load32_splat(x);
    a0 = f32x4.add(a0, f32x4.mul(s, v128.load(panel)));
    a1 = f32x4.add(a1, f32x4.mul(s, v128.load(panel, 16)));
  }
  v128.store(y, a0); v128.store(y, a1, 16);
}

/** One row: the matrix is read from front to back, four of its rows at a time. */
function oneByColumns(x: usize, w: usize, y: usize, k: usize, n: usize, n0: usize, n1: usize): void {
  memory.fill(y + 4 * n0, 0, 4 * (n1 - n0));
  const row = n * 4;
  let i: usize = 0;
  for (; i + 4 <= k; i += 4) {
    const x0 = v128.load32_splat(x + 4 * i), x1 = v128.load32_splat(x + 4 * i, 4);
    const x2 = v128.load32_splat(x + 4 * i, 8), x3 = v128.load32_splat(x + 4 * i, 12);
    let p = w + 4 * (i * n + n0), o = y + 4 * n0;
    const end = y + 4 * n1;
    for (; o + 16 <= end; o += 16, p += 16) {
      let s = f32x4.add(v128.load(o), f32x4.mul(x0, v128.load(p)));
      s = f32x4.add(s, f32x4.mul(x1, v128.load(p + row)));
      s = f32x4.add(s, f32x4.mul(x2, v128.load(p + 2 * row)));
      v128.store(o, f32x4.add(s, f32x4.mul(x3, v128.load(p + 3 * row))));
    }
    for (; o < end; o += 4, p += 4) {
      let s = load<f32>(o) + f32x4.extract_lane(x0, 0) * load<f32>(p);
      s += f32x4.extract_lane(x1, 0) * load<f32>(p + row);
      s += f32x4.extract_lane(x2, 0) * load<f32>(p + 2 * row);
      store<f32>(o, s + f32x4.extract_lane(x3, 0) * load<f32>(p + 3 * row));
    }
  }
  for (; i < k; i++) {
    const s = load<f32>(x + 4 * i);
    for (let j = n0; j < n1; j++) {
      const o = y + 4 * j;
      store<f32>(o, load<f32>(o) + s * load<f32>(w + 4 * (i * n + j)));
    }
  }
}

/** The same with w (n, k), as the head has it. */
export function byRows(x: usize, w: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize): void {
  const whole = k & ~3;
  let r = n0;
  for (; r + 4 <= n1; r += 4) {
    for (let g: usize = 0; g < m; g++) {
      const a = x + 4 * g * k, p = w + 4 * r * k, row = k * 4;
      let s0 = f32x4.splat(0), s1 = f32x4.splat(0), s2 = f32x4.splat(0), s3 = f32x4.splat(0);
      let i: usize = 0;
      for (; i < whole; i += 4) {
        const v = v128.load(a + 4 * i), q = p + 4 * i;
        s0 = f32x4.add(s0, f32x4.mul(v, v128.load(q)));
        s1 = f32x4.add(s1, f32x4.mul(v, v128.load(q + row)));
        s2 = f32x4.add(s2, f32x4.mul(v, v128.load(q + 2 * row)));
        s3 = f32x4.add(s3, f32x4.mul(v, v128.load(q + 3 * row)));
      }
      let sums = sumsF32(s0, s1, s2, s3);
      for (; i < k; i++) {
        const q = p + 4 * i;
        const column = f32x4(load<f32>(q), load<f32>(q + row), load<f32>(q + 2 * row), load<f32>(q + 3 * row));
        sums = f32x4.add(sums, f32x4.mul(v128.load32_splat(a + 4 * i), column));
      }
      v128.store(y + 4 * (g * n + r), sums);
    }
  }
  for (; r < n1; r++) for (let g: usize = 0; g < m; g++) store<f32>(y + 4 * (g * n + r), dot(x + 4 * g * k, w + 4 * r * k, k));
}

export function dot(a: usize, b: usize, k: usize): f32 {
  let s0 = f32x4.splat(0), s1 = f32x4.splat(0), i: usize = 0;
  for (; i + 8 <= k; i += 8) {
    s0 = f32x4.add(s0, f32x4.mul(v128.load(a + 4 * i), v128.load(b + 4 * i)));
    s1 = f32x4.add(s1, f32x4.mul(v128.load(a + 4 * i, 16), v128.load(b + 4 * i, 16)));
  }
  let sum = sumF32(f32x4.add(s0, s1));
  for (; i < k; i++) sum += load<f32>(a + 4 * i) * load<f32>(b + 4 * i);
  return sum;
}
