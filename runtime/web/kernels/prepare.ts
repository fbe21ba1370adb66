// From the layout of a model file to the one that the products read. Runs once, at load.
import { lanes } from "./relaxed";

/** Bytes (rows, columns) as (columns, padded), the end of each row filled with 0. */
export function transpose8(from: usize, to: usize, rows: usize, columns: usize, padded: usize): void {
  for (let c0: usize = 0; c0 < columns; c0 += 64) {
    const c1 = min(columns, c0 + 64);
    for (let r0: usize = 0; r0 < rows; r0 += 16) {
      const r1 = min(rows, r0 + 16);
      if (r1 - r0 == 16 && c1 - c0 == 64) { for (let c = c0; c < c1; c += 16) square(from + r0 * columns + c, to + c * padded + r0, columns, padded); continue; }
      for (let c = c0; c < c1; c++) for (let r = r0; r < r1; r++) store<u8>(to + c * padded + r, load<u8>(from + r * columns + c));
    }
  }
  for (let c: usize = 0; c < columns; c++) if (rows < padded) memory.fill(to + c * padded + rows, 0, padded - rows);
}

// @ts-ignore: decorator
@inline function even(a: v128, b: v128): v128 { return i8x16.shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
// @ts-ignore: decorator
@inline function odd(a: v128, b: v128): v128 { return i8x16.shuffle(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }

/** 16 by 16 bytes: interleaving rows i and i + 8 four times transposes them. */
function square(from: usize, to: usize, columns: usize, padded: usize): void {
  const spare: usize = memory.data(512);
  for (let i: usize = 0; i < 16; i++) v128.store(spare + 16 * i, v128.load(from + i * columns));
  let a = spare, b = spare + 256;
  for (let round = 0; round < 4; round++) {
    for (let i: usize = 0; i < 8; i++) {
      const p = v128.load(a + 16 * i), q = v128.load(a + 16 * i, 128);
      v128.store(b + 32 * i, even(p, q));
      v128.store(b + 32 * i, odd(p, q), 16);
    }
    const t = a; a = b; b = t;
  }
  for (let i: usize = 0; i < 16; i++) v128.store(to + i * padded, v128.load(a + 16 * i));
}

/** Bytes (rows, columns) as (rows, padded), each less `zero`; the end of each row filled with 0. */
export function padRows8(from: usize, to: usize, rows: usize, columns: usize, padded: usize, zero: u8): void {
  for (let r: usize = 0; r < rows; r++) {
    for (let c: usize = 0; c < columns; c++) store<u8>(to + r * padded + c, load<u8>(from + r * columns + c) - zero);
    if (columns < padded) memory.fill(to + r * padded + columns, 0, padded - columns);
  }
}

/** Each 16 of `count` bytes as the products of blocks read them. In place. */
export function orderLanes(at: usize, count: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD) for (const end = at + count; at < end; at += 16) v128.store(at, lanes(v128.load(at)));
}

/** Blocks of 32 values of 4 bits, two neighbours in a byte, as `int4Blocks` reads them: value i with value i + 16. In place. */
export function pairNibbles(at: usize, blocks: usize): void {
  const low = i8x16.splat(15);
  for (let b: usize = 0; b < blocks; b++, at += 16) {
    const bytes = v128.load(at), first = v128.and(bytes, low), second = i8x16.shr_u(bytes, 4);
    v128.store(at, v128.or(even(first, second), i8x16.shl(odd(first, second), 4)));
  }
}

/** The zero points of `rows` rows, two in a byte, as a byte each. */
export function unpackZeros(from: usize, to: usize, rows: usize, blocks: usize): void {
  for (let r: usize = 0; r < rows; r++) for (let b: usize = 0; b < blocks; b++) {
    store<u8>(to + r * blocks + b, load<u8>(from + r * ((blocks + 1) >> 1) + (b >> 1)) >> <u8>(4 * (b & 1)) & 15);
  }
}

/** Values of 4 bits in blocks of `size`, less their zero point, as int8. */
export function unpackNibbles(from: usize, zeros: usize, to: usize, blocks: usize, size: usize): void {
  for (let b: usize = 0; b < blocks; b++) {
    const zero = load<u8>(zeros + b);
    for (let i: usize = 0; i < size; i += 2, to += 2, from++) {
      const byte = load<u8>(from);
      store<u8>(to, (byte & 15) - zero);
      store<u8>(to, (byte >> 4) - zero, 1);
    }
  }
}

/** n numbers from float16 to float32. */
export function halfToFloat(from: usize, to: usize, n: usize): void {
  for (let i: usize = 0; i < n; i++) {
    const h = <u32>load<u16>(from + 2 * i), sign = (h & 0x8000) << 16, rest = h & 0x7fff;
    // Exponents are off by 112; numbers below the normal ones become normal by a product.
    let value = reinterpret<f32>(rest << 13) * reinterpret<f32>(<u32>0x77800000);
    if (rest >= 0x7c00) value = reinterpret<f32>((rest << 13) | 0x7f800000);
    store<u32>(to + 4 * i, reinterpret<u32>(value) | sign);
  }
}
