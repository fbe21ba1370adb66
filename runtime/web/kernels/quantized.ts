// Products with matrices of 8 and 4 bits. Activations are rounded to whole numbers with a scale per row, held in 16
// bits, and multiplied exactly; a row's result never depends on its neighbours.
import { sumF32, sumI32, sumsF32, sumsI32 } from "./vector";

// @ts-ignore: decorator
@inline function largest(x: usize, k: usize): f32 {
  let m = f32x4.splat(0), i: usize = 0;
  for (; i + 4 <= k; i += 4) m = f32x4.max(m, f32x4.abs(v128.load(x + 4 * i)));
  let big = max(max(f32x4.extract_lane(m, 0), f32x4.extract_lane(m, 1)), max(f32x4.extract_lane(m, 2), f32x4.extract_lane(m, 3)));
  for (; i < k; i++) big = max(big, abs(load<f32>(x + 4 * i)));
  return big;
}

/**
 * x (m, k) as int16 (m, padded) and a scale per row. `levels` 127 rounds as the graphs of int8 rows do:
 * s = max|x| * (1 / 127), q = round-half-even(x / s) from -128 to 127. More levels cost nothing where the graph
 * does not ask for 8 bits.
 */
export function roundRows(x: usize, q: usize, scales: usize, m: usize, k: usize, padded: usize, levels: f32): void {
  const step: f32 = <f32>1 / levels, low = f32x4.splat(-levels - 1), high = f32x4.splat(levels);
  for (let g: usize = 0; g < m; g++) {
    const from = x + 4 * g * k, to = q + 2 * g * padded;
    const s = largest(from, k) * step;
    store<f32>(scales + 4 * g, s);
    const by = f32x4.splat(s > 0 ? s : 1);
    let i: usize = 0;
    for (; i + 8 <= k; i += 8) {
      const a = f32x4.nearest(f32x4.div(v128.load(from + 4 * i), by)), b = f32x4.nearest(f32x4.div(v128.load(from + 4 * i, 16), by));
      v128.store(to + 2 * i, i16x8.narrow_i32x4_s(
        i32x4.trunc_sat_f32x4_s(f32x4.max(low, f32x4.min(high, a))), i32x4.trunc_sat_f32x4_s(f32x4.max(low, f32x4.min(high, b)))));
    }
    for (; i < k; i++) {
      const a = nearest(load<f32>(from + 4 * i) / (s > 0 ? s : 1));
      store<i16>(to + 2 * i, <i16>max(-levels - 1, min(levels, a)));
    }
    for (; i < padded; i++) store<i16>(to + 2 * i, 0);
  }
}

/** y (m, n) = (q (m, k) w (n, k)^T) by the scales of rows and columns; w is int8, k a multiple of 16. */
export function int8Rows(q: usize, qs: usize, w: usize, ws: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize): void {
  let r = n0;
  for (; r + 4 <= n1; r += 4) {
    const c = v128.load(ws + 4 * r);
    let g: usize = 0;
    for (; g + 2 <= m; g += 2) twoRows(q + 2 * g * k, qs + 4 * g, w + r * k, c, y + 4 * (g * n + r), k, n);
    for (; g < m; g++) oneRow(q + 2 * g * k, qs + 4 * g, w + r * k, c, y + 4 * (g * n + r), k);
  }
  for (; r < n1; r++) for (let g: usize = 0; g < m; g++) {
    let s = i32x4.splat(0);
    for (let i: usize = 0; i < k; i += 8) s = i32x4.add(s, i32x4.dot_i16x8_s(v128.load(q + 2 * (g * k + i)), v128.load8x8_s(w + r * k + i)));
    store<f32>(y + 4 * (g * n + r), <f32>sumI32(s) * load<f32>(qs + 4 * g) * load<f32>(ws + 4 * r));
  }
}

// @ts-ignore: decorator
@inline function oneRow(a: usize, qs: usize, p: usize, c: v128, o: usize, k: usize): void {
  let s0 = i32x4.splat(0), s1 = i32x4.splat(0), s2 = i32x4.splat(0), s3 = i32x4.splat(0);
  const end = a + 2 * k;
  for (; a < end; a += 32, p += 16) {
    const a0 = v128.load(a), a1 = v128.load(a, 16);
    let z = v128.load(p);
    s0 = i32x4.add(s0, i32x4.add(i32x4.dot_i16x8_s(a0, i16x8.extend_low_i8x16_s(z)), i32x4.dot_i16x8_s(a1, i16x8.extend_high_i8x16_s(z))));
    z = v128.load(p + k);
    s1 = i32x4.add(s1, i32x4.add(i32x4.dot_i16x8_s(a0, i16x8.extend_low_i8x16_s(z)), i32x4.dot_i16x8_s(a1, i16x8.extend_high_i8x16_s(z))));
    z = v128.load(p + 2 * k);
    s2 = i32x4.add(s2, i32x4.add(i32x4.dot_i16x8_s(a0, i16x8.extend_low_i8x16_s(z)), i32x4.dot_i16x8_s(a1, i16x8.extend_high_i8x16_s(z))));
    z = v128.load(p + 3 * k);
    s3 = i32x4.add(s3, i32x4.add(i32x4.dot_i16x8_s(a0, i16x8.extend_low_i8x16_s(z)), i32x4.dot_i16x8_s(a1, i16x8.extend_high_i8x16_s(z))));
  }
  const sums = f32x4.convert_i32x4_s(sumsI32(s0, s1, s2, s3));
  v128.store(o, f32x4.mul(f32x4.mul(sums, v128.load32_splat(qs)), c));
}

/** Two rows of activations by four of weights. */
// @ts-ignore: decorator
@inline function twoRows(a: usize, qs: usize, p: usize, c: v128, o: usize, k: usize, n: usize): void {
  let s0 = i32x4.splat(0), s1 = i32x4.splat(0), s2 = i32x4.splat(0), s3 = i32x4.splat(0);
  let t0 = i32x4.splat(0), t1 = i32x4.splat(0), t2 = i32x4.splat(0), t3 = i32x4.splat(0);
  const end = a + 2 * k, row = k * 2;
  for (; a < end; a += 32, p += 16) {
    const a0 = v128.load(a), a1 = v128.load(a, 16), b0 = v128.load(a + row), b1 = v128.load(a + row, 16);
    let z = v128.load(p), lo = i16x8.extend_low_i8x16_s(z), hi = i16x8.extend_high_i8x16_s(z);
    s0 = i32x4.add(s0, i32x4.add(i32x4.dot_i16x8_s(a0, lo), i32x4.dot_i16x8_s(a1, hi)));
    t0 = i32x4.add(t0, i32x4.add(i32x4.dot_i16x8_s(b0, lo), i32x4.dot_i16x8_s(b1, hi)));
    z = v128.load(p + k); lo = i16x8.extend_low_i8x16_s(z); hi = i16x8.extend_high_i8x16_s(z);
    s1 = i32x4.add(s1, i32x4.add(i32x4.dot_i16x8_s(a0, lo), i32x4.dot_i16x8_s(a1, hi)));
    t1 = i32x4.add(t1, i32x4.add(i32x4.dot_i16x8_s(b0, lo), i32x4.dot_i16x8_s(b1, hi)));
    z = v128.load(p + 2 * k); lo = i16x8.extend_low_i8x16_s(z); hi = i16x8.extend_high_i8x16_s(z);
    s2 = i32x4.add(s2, i32x4.add(i32x4.dot_i16x8_s(a0, lo), i32x4.dot_i16x8_s(a1, hi)));
    t2 = i32x4.add(t2, i32x4.add(i32x4.dot_i16x8_s(b0, lo), i32x4.dot_i16x8_s(b1, hi)));
    z = v128.load(p + 3 * k); lo = i16x8.extend_low_i8x16_s(z); hi = i16x8.extend_high_i8x16_s(z);
    s3 = i32x4.add(s3, i32x4.add(i32x4.dot_i16x8_s(a0, lo), i32x4.dot_i16x8_s(a1, hi)));
    t3 = i32x4.add(t3, i32x4.add(i32x4.dot_i16x8_s(b0, lo), i32x4.dot_i16x8_s(b1, hi)));
  }
  let sums = f32x4.convert_i32x4_s(sumsI32(s0, s1, s2, s3));
  v128.store(o, f32x4.mul(f32x4.mul(sums, v128.load32_splat(qs)), c));
  sums = f32x4.convert_i32x4_s(sumsI32(t0, t1, t2, t3));
  v128.store(o + 4 * n, f32x4.mul(f32x4.mul(sums, v128.load32_splat(qs, 4)), c));
}

/**
 * The same with a scale for every `size` weights (16 or a multiple) in place of one for each column: w int8 (n, k),
 * ws (n, k / size).
 */
export function int8Blocks(q: usize, qs: usize, w: usize, ws: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize, size: usize): void {
  const blocks = k / size;
  for (let r = n0; r < n1; r++) {
    for (let g: usize = 0; g < m; g++) {
      let acc = f32x4.splat(0), p = w + r * k, a = q + 2 * g * k;
      for (let c = ws + 4 * r * blocks, last = c + 4 * blocks; c < last; c += 4) {
        let s = i32x4.splat(0);
        for (const end = p + size; p < end; p += 16, a += 32) {
          const z = v128.load(p);
          s = i32x4.add(s, i32x4.add(i32x4.dot_i16x8_s(v128.load(a), i16x8.extend_low_i8x16_s(z)), i32x4.dot_i16x8_s(v128.load(a, 16), i16x8.extend_high_i8x16_s(z))));
        }
        acc = f32x4.add(acc, f32x4.mul(f32x4.convert_i32x4_s(s), v128.load32_splat(c)));
      }
      store<f32>(y + 4 * (g * n + r), sumF32(acc) * load<f32>(qs + 4 * g));
    }
  }
}

/**
 * The same with 4 bits in blocks of 32. Byte i of a block of 16 holds value i below and value i + 16 above
 * (`unpackNibbles` brings them there); zs (n, k / 32) are the zero points, a byte each.
 */
export function int4Blocks(q: usize, qs: usize, w: usize, ws: usize, zs: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize): void {
  const blocks = k >> 5;
  for (let r = n0; r < n1; r++) {
    const p = w + r * (k >> 1), c = ws + 4 * r * blocks, z = zs + r * blocks;
    let g: usize = 0;
    for (; g + 4 <= m; g += 4) fourRows4(q + 2 * g * k, qs + 4 * g, p, c, z, y + 4 * (g * n + r), k, n, blocks);
    for (; g < m; g++) oneRow4(q + 2 * g * k, qs + 4 * g, p, c, z, y + 4 * (g * n + r), blocks);
  }
}

// @ts-ignore: decorator
@inline function block4(a: usize, w0: v128, w1: v128, w2: v128, w3: v128): v128 {
  return f32x4.convert_i32x4_s(i32x4.add(
    i32x4.add(i32x4.dot_i16x8_s(v128.load(a), w0), i32x4.dot_i16x8_s(v128.load(a, 16), w1)),
    i32x4.add(i32x4.dot_i16x8_s(v128.load(a, 32), w2), i32x4.dot_i16x8_s(v128.load(a, 48), w3))));
}

// @ts-ignore: decorator
@inline function oneRow4(a: usize, qs: usize, p: usize, c: usize, z: usize, o: usize, blocks: usize): void {
  const low = i8x16.splat(15);
  let acc = f32x4.splat(0);
  for (let b: usize = 0; b < blocks; b++, p += 16, a += 64) {
    const bytes = v128.load(p), zero = v128.load8_splat(z + b);
    const lo = i8x16.sub(v128.and(bytes, low), zero), hi = i8x16.sub(i8x16.shr_u(bytes, 4), zero);
    const sum = block4(a, i16x8.extend_low_i8x16_s(lo), i16x8.extend_high_i8x16_s(lo), i16x8.extend_low_i8x16_s(hi), i16x8.extend_high_i8x16_s(hi));
    acc = f32x4.add(acc, f32x4.mul(sum, v128.load32_splat(c + 4 * b)));
  }
  store<f32>(o, sumF32(acc) * load<f32>(qs));
}

/** Four rows of activations by one of weights, which is unpacked once. */
// @ts-ignore: decorator
@inline function fourRows4(a: usize, qs: usize, p: usize, c: usize, z: usize, o: usize, k: usize, n: usize, blocks: usize): void {
  const low = i8x16.splat(15), row = k * 2;
  let s0 = f32x4.splat(0), s1 = f32x4.splat(0), s2 = f32x4.splat(0), s3 = f32x4.splat(0);
  for (let b: usize = 0; b < blocks; b++, p += 16, a += 64) {
    const bytes = v128.load(p), zero = v128.load8_splat(z + b), scale = v128.load32_splat(c + 4 * b);
    const lo = i8x16.sub(v128.and(bytes, low), zero), hi = i8x16.sub(i8x16.shr_u(bytes, 4), zero);
    const w0 = i16x8.extend_low_i8x16_s(lo), w1 = i16x8.extend_high_i8x16_s(lo);
    const w2 = i16x8.extend_low_i8x16_s(hi), w3 = i16x8.extend_high_i8x16_s(hi);
    s0 = f32x4.add(s0, f32x4.mul(block4(a, w0, w1, w2, w3), scale));
    s1 = f32x4.add(s1, f32x4.mul(block4(a + row, w0, w1, w2, w3), scale));
    s2 = f32x4.add(s2, f32x4.mul(block4(a + 2 * row, w0, w1, w2, w3), scale));
    s3 = f32x4.add(s3, f32x4.mul(block4(a + 3 * row, w0, w1, w2, w3), scale));
  }
  // The same order of sums as for one row.
  store<f32>(o, sumF32(s0) * load<f32>(qs));
  store<f32>(o + 4 * n, sumF32(s1) * load<f32>(qs, 4));
  store<f32>(o + 8 * n, sumF32(s2) * load<f32>(qs, 8));
  store<f32>(o + 12 * n, sumF32(s3) * load<f32>(qs, 12));
}
