// Small things on vectors of four, used by all kernels. Everything here is deterministic: no fused operations.

// @ts-ignore: decorator
@inline export function sumI32(a: v128): i32 {
  return i32x4.extract_lane(a, 0) + i32x4.extract_lane(a, 1) + i32x4.extract_lane(a, 2) + i32x4.extract_lane(a, 3);
}

// @ts-ignore: decorator
@inline export function sumF32(a: v128): f32 {
  return f32x4.extract_lane(a, 0) + f32x4.extract_lane(a, 1) + (f32x4.extract_lane(a, 2) + f32x4.extract_lane(a, 3));
}

/** The sums of four vectors, as one. */
// @ts-ignore: decorator
@inline export function sumsI32(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = i32x4.add(i32x4.shuffle(a, b, 0, 4, 1, 5), i32x4.shuffle(a, b, 2, 6, 3, 7));
  const cd = i32x4.add(i32x4.shuffle(c, d, 0, 4, 1, 5), i32x4.shuffle(c, d, 2, 6, 3, 7));
  return i32x4.add(i32x4.shuffle(ab, cd, 0, 1, 4, 5), i32x4.shuffle(ab, cd, 2, 3, 6, 7));
}

// @ts-ignore: decorator
@inline export function sumsF32(a: v128, b: v128, c: v128, d: v128): v128 {
  const ab = f32x4.add(i32x4.shuffle(a, b, 0, 4, 1, 5), i32x4.shuffle(a, b, 2, 6, 3, 7));
  const cd = f32x4.add(i32x4.shuffle(c, d, 0, 4, 1, 5), i32x4.shuffle(c, d, 2, 6, 3, 7));
  return f32x4.add(i32x4.shuffle(ab, cd, 0, 1, 4, 5), i32x4.shuffle(ab, cd, 2, 3, 6, 7));
}

/** e^x of each lane: 2^n e^r with |r| <= ln 2 / 2, e^r by its series up to r^7 (off by 5e-9). */
// @ts-ignore: decorator
@inline export function exp4(x: v128): v128 {
  const bounded = f32x4.min(f32x4.max(x, f32x4.splat(-87.3)), f32x4.splat(88.3));
  const n = f32x4.nearest(f32x4.mul(bounded, f32x4.splat(1.44269504)));
  // ln 2 in two parts, so that n times the first is exact.
  let r = f32x4.sub(bounded, f32x4.mul(n, f32x4.splat(0.693359375)));
  r = f32x4.add(r, f32x4.mul(n, f32x4.splat(0.000212194440)));
  let p = f32x4.splat(1.98412698e-4);
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.38888889e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(8.33333333e-3));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(4.16666667e-2));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1.66666667e-1));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(0.5));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1));
  p = f32x4.add(f32x4.mul(p, r), f32x4.splat(1));
  const power = i32x4.shl(i32x4.add(i32x4.trunc_sat_f32x4_s(n), i32x4.splat(127)), 23);
  return f32x4.mul(p, power);
}

// @ts-ignore: decorator
@inline export function tanh4(x: v128): v128 {
  const e = exp4(f32x4.add(x, x));
  const one = f32x4.splat(1);
  return f32x4.sub(one, f32x4.div(f32x4.splat(2), f32x4.add(e, one)));
}

/** The error function, off by at most 1.5e-7 (Abramowitz and Stegun 7.1.26). */
// @ts-ignore: decorator
@inline export function erf4(x: v128): v128 {
  const a = f32x4.abs(x), one = f32x4.splat(1);
  const t = f32x4.div(one, f32x4.add(one, f32x4.mul(f32x4.splat(0.3275911), a)));
  let p = f32x4.splat(1.061405429);
  p = f32x4.add(f32x4.mul(p, t), f32x4.splat(-1.453152027));
  p = f32x4.add(f32x4.mul(p, t), f32x4.splat(1.421413741));
  p = f32x4.add(f32x4.mul(p, t), f32x4.splat(-0.284496736));
  p = f32x4.add(f32x4.mul(p, t), f32x4.splat(0.254829592));
  const y = f32x4.sub(one, f32x4.mul(f32x4.mul(p, t), exp4(f32x4.neg(f32x4.mul(a, a)))));
  return v128.bitselect(y, x, i32x4.splat(0x7fffffff)); // the sign of x
}
