// The products of quantized.ts by relaxed SIMD's dot product of bytes: four times as many in an instruction. Integers
// are exact and lie in the same lanes, so results are equal bit for bit.
import { sumF32, sumsI32 } from "./vector";

/** Sums of four neighbours' products, signed bytes of `a` by bytes of `b` from 0 to 127, added to `c`. */
// @ts-ignore: decorator
@inline function dot(a: v128, b: v128, c: v128): v128 { return i32x4.relaxed_dot_i8x16_i7x16_add_s(a, b, c); }

const PROBE: usize = memory.data<u8>([127, 255]);

/** How this machine takes bytes of `b` above 127: as unsigned (128: what to add to signed ones), as signed (0), or not exactly (-1). */
export function dotOffset(): i32 {
  const sum = i32x4.extract_lane(dot(v128.load8_splat(PROBE), v128.load8_splat(PROBE, 1), i32x4.splat(0)), 0);
  return sum == 4 * 127 * 255 ? 128 : sum == -4 * 127 ? 0 : -1;
}

/** `count` int16 between -128 and 127 as bytes, plus `offset`. In place. */
export function toBytes(q: usize, count: usize, offset: i32): void {
  const flip = i8x16.splat(<i8>offset);
  for (let i: usize = 0; i < count; i += 16) v128.store(q + i, v128.xor(flip, i8x16.narrow_i16x8_s(v128.load(q + 2 * i), v128.load(q + 2 * i, 16))));
}

/** Each 16 int16 of 14 bits as 16 bytes high + 64 and 16 bytes low, 7 bits each, in the order of `lanes`. In place. */
export function splitBytes(q: usize, count: usize): void {
  const seven = i16x8.splat(127), middle = i16x8.splat(64);
  for (const end = q + 2 * count; q < end; q += 32) {
    const a = v128.load(q), b = v128.load(q, 16);
    v128.store(q, lanes(i8x16.narrow_i16x8_s(i16x8.add(i16x8.shr_s(a, 7), middle), i16x8.add(i16x8.shr_s(b, 7), middle))));
    v128.store(q, lanes(i8x16.narrow_i16x8_s(v128.and(a, seven), v128.and(b, seven))), 16);
  }
}

/** The order in which four neighbours are those that `dot_i16x8` adds up in a lane. */
// @ts-ignore: decorator
@inline export function lanes(a: v128): v128 { return i8x16.shuffle(a, a, 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15); }

/** For each of n rows of w (n, k): the sum of its bytes times `offset`. */
export function rowSums(w: usize, sums: usize, n: usize, k: usize, offset: i32): void {
  for (const end = sums + 4 * n; sums < end; sums += 4) {
    let s = i32x4.splat(0);
    for (const last = w + k; w < last; w += 16) s = dot(v128.load(w), i8x16.splat(1), s);
    store<i32>(sums, offset * i32x4.extract_lane(sumsI32(s, s, s, s), 0));
  }
}

/** See `quantized.int8Rows`; q by `toBytes`, `sums` by `rowSums`. */
export function int8Rows(q: usize, qs: usize, w: usize, ws: usize, sums: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize): void {
  let r = n0;
  for (; r + 4 <= n1; r += 4) {
    const c = v128.load(ws + 4 * r), less = v128.load(sums + 4 * r);
    let g: usize = 0;
    for (; g + 2 <= m; g += 2) twoRows(q + g * k, qs + 4 * g, w + r * k, c, less, y + 4 * (g * n + r), k, n);
    for (; g < m; g++) oneRow(q + g * k, qs + 4 * g, w + r * k, c, less, y + 4 * (g * n + r), k);
  }
  for (; r < n1; r++) for (let g: usize = 0; g < m; g++) {
    let s = i32x4.splat(0);
    for (let i: usize = 0; i < k; i += 16) s = dot(v128.load(w + r * k + i), v128.load(q + g * k + i), s);
    const sum = i32x4.extract_lane(sumsI32(s, s, s, s), 0) - load<i32>(sums + 4 * r);
    store<f32>(y + 4 * (g * n + r), <f32>sum * load<f32>(qs + 4 * g) * load<f32>(ws + 4 * r));
  }
}

// @ts-ignore: decorator
@inline function oneRow(a: usize, qs: usize, p: usize, c: v128, less: v128, o: usize, k: usize): void {
  let s0 = i32x4.splat(0), s1 = i32x4.splat(0), s2 = i32x4.splat(0), s3 = i32x4.splat(0);
  for (const end = a + k; a < end; a += 16, p += 16) {
    const b = v128.load(a);
    s0 = dot(v128.load(p), b, s0);
    s1 = dot(v128.load(p + k), b, s1);
    s2 = dot(v128.load(p + 2 * k), b, s2);
    s3 = dot(v128.load(p + 3 * k), b, s3);
  }
  put(o, sumsI32(s0, s1, s2, s3), less, qs, c);
}

/** Two rows of activations by four of weights. */
// @ts-ignore: decorator
@inline function twoRows(a: usize, qs: usize, p: usize, c: v128, less: v128, o: usize, k: usize, n: usize): void {
  let s0 = i32x4.splat(0), s1 = i32x4.splat(0), s2 = i32x4.splat(0), s3 = i32x4.splat(0);
  let t0 = i32x4.splat(0), t1 = i32x4.splat(0), t2 = i32x4.splat(0), t3 = i32x4.splat(0);
  for (const end = a + k; a < end; a += 16, p += 16) {
    const b = v128.load(a), d = v128.load(a + k);
    let z = v128.load(p);
    s0 = dot(z, b, s0); t0 = dot(z, d, t0);
    z = v128.load(p + k);
    s1 = dot(z, b, s1); t1 = dot(z, d, t1);
    z = v128.load(p + 2 * k);
    s2 = dot(z, b, s2); t2 = dot(z, d, t2);
    z = v128.load(p + 3 * k);
    s3 = dot(z, b, s3); t3 = dot(z, d, t3);
  }
  put(o, sumsI32(s0, s1, s2, s3), less, qs, c);
  put(o + 4 * n, sumsI32(t0, t1, t2, t3), less, qs + 4, c);
}

// @ts-ignore: decorator
@inline function put(o: usize, sums: v128, less: v128, qs: usize, c: v128): void {
  v128.store(o, f32x4.mul(f32x4.mul(f32x4.convert_i32x4_s(i32x4.sub(sums, less)), v128.load32_splat(qs)), c));
}

/** See `quantized.int8Blocks`; q by `splitBytes`, w in the order of `lanes`. */
export function int8Blocks(q: usize, qs: usize, w: usize, ws: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize, size: usize): void {
  const blocks = k / size;
  for (let r = n0; r < n1; r++) for (let g: usize = 0; g < m; g++) {
    let acc = f32x4.splat(0), p = w + r * k, a = q + 2 * g * k;
    for (let c = ws + 4 * r * blocks, last = c + 4 * blocks; c < last; c += 4) {
      let high = i32x4.splat(0), low = high, all = high;
      for (const end = p + size; p < end; p += 16, a += 32) {
        const z = v128.load(p);
        high = dot(z, v128.load(a), high);
        low = dot(z, v128.load(a, 16), low);
        all = dot(z, i8x16.splat(64), all);
      }
      acc = f32x4.add(acc, f32x4.mul(joined(i32x4.sub(high, all), low), v128.load32_splat(c)));
    }
    store<f32>(y + 4 * (g * n + r), sumF32(acc) * load<f32>(qs + 4 * g));
  }
}

// @ts-ignore: decorator
@inline function joined(high: v128, low: v128): v128 { return f32x4.convert_i32x4_s(i32x4.add(i32x4.shl(high, 7), low)); }

/** See `quantized.int4Blocks`; q by `splitBytes`, bytes of w in the order of `lanes`. */
export function int4Blocks(q: usize, qs: usize, w: usize, ws: usize, zs: usize, y: usize, m: usize, k: usize, n: usize, n0: usize, n1: usize): void {
  const blocks = k >> 5;
  for (let r = n0; r < n1; r++) {
    const p = w + r * (k >> 1), c = ws + 4 * r * blocks, z = zs + r * blocks;
    let g: usize = 0;
    for (; g + 4 <= m; g += 4) fourRows4(q + 2 * g * k, qs + 4 * g, p, c, z, y + 4 * (g * n + r), k, n, blocks);
    for (; g < m; g++) oneRow4(q + 2 * g * k, qs + 4 * g, p, c, z, y + 4 * (g * n + r), blocks);
  }
}

/** 32 weights by the activations at `a`; `less` is 64 times the weights' sums. */
// @ts-ignore: decorator
@inline function block4(a: usize, lo: v128, hi: v128, less: v128): v128 {
  const high = dot(hi, v128.load(a, 32), dot(lo, v128.load(a), less));
  return f32x4.convert_i32x4_s(dot(hi, v128.load(a, 48), dot(lo, v128.load(a, 16), i32x4.shl(high, 7))));
}

// @ts-ignore: decorator
@inline function oneRow4(a: usize, qs: usize, p: usize, c: usize, z: usize, o: usize, blocks: usize): void {
  const low = i8x16.splat(15), one = i8x16.splat(1);
  let acc = f32x4.splat(0);
  for (let b: usize = 0; b < blocks; b++, p += 16, a += 64) {
    const bytes = v128.load(p), zero = v128.load8_splat(z + b);
    const lo = i8x16.sub(v128.and(bytes, low), zero), hi = i8x16.sub(i8x16.shr_u(bytes, 4), zero);
    const less = i32x4.neg(i32x4.shl(dot(hi, one, dot(lo, one, i32x4.splat(0))), 6));
    acc = f32x4.add(acc, f32x4.mul(block4(a, lo, hi, less), v128.load32_splat(c + 4 * b)));
  }
  store<f32>(o, sumF32(acc) * load<f32>(qs));
}

/** Four rows of activations by one of weights, which is unpacked once. */
// @ts-ignore: decorator
@inline function fourRows4(a: usize, qs: usize, p: usize, c: usize, z: usize, o: usize, k: usize, n: usize, blocks: usize): void {
  const low = i8x16.splat(15), one = i8x16.splat(1), row = k * 2;
  let s0 = f32x4.splat(0), s1 = f32x4.splat(0), s2 = f32x4.splat(0), s3 = f32x4.splat(0);
  for (let b: usize = 0; b < blocks; b++, p += 16, a += 64) {
    const bytes = v128.load(p), zero = v128.load8_splat(z + b), scale = v128.load32_splat(c + 4 * b);
    const lo = i8x16.sub(v128.and(bytes, low), zero), hi = i8x16.sub(i8x16.shr_u(bytes, 4), zero);
    const less = i32x4.neg(i32x4.shl(dot(hi, one, dot(lo, one, i32x4.splat(0))), 6));
    s0 = f32x4.add(s0, f32x4.mul(block4(a, lo, hi, less), scale));
    s1 = f32x4.add(s1, f32x4.mul(block4(a + row, lo, hi, less), scale));
    s2 = f32x4.add(s2, f32x4.mul(block4(a + 2 * row, lo, hi, less), scale));
    s3 = f32x4.add(s3, f32x4.mul(block4(a + 3 * row, lo, hi, less), scale));
  }
  store<f32>(o, sumF32(s0) * load<f32>(qs));
  store<f32>(o + 4 * n, sumF32(s1) * load<f32>(qs, 4));
  store<f32>(o + 8 * n, sumF32(s2) * load<f32>(qs, 8));
  store<f32>(o + 12 * n, sumF32(s3) * load<f32>(qs, 12));
}
