// The kernels as the engine sees them. Products and attention are shared among threads: each works on a part of the
// columns or heads. The thread that calls writes the job down, wakes the others and does its own part.
import * as attention from "./attention";
import * as float32 from "./float32";
import * as quantized from "./quantized";
import * as relaxed from "./relaxed";

export { activate, add, addBias, layerNorm, rmsNorm, rotate, softcap, withMeans } from "./elementwise";
export { roundRows } from "./quantized";
export { halfToFloat, orderLanes, padRows8, pairNibbles, transpose8, unpackNibbles, unpackZeros } from "./prepare";
export { sha256 } from "./sha256";

const BY_COLUMNS = 0, BY_ROWS = 1, INT8_ROWS = 2, INT8_BLOCKS = 3, INT4_BLOCKS = 4, ATTEND = 5, LEAVE = 6;

// A line of cache each: the number of the job, how many are done with it, and what it is.
const NUMBER: usize = memory.data(64, 64), DONE: usize = memory.data(64, 64), JOB: usize = memory.data(64, 64);
const THREADS: usize = memory.data(64, 64);
const SPINS = 20000;

// @ts-ignore: decorator
@inline function argument(i: usize): usize { return load<usize>(JOB + 4 * i); }
// @ts-ignore: decorator
@inline function put(i: usize, value: usize): void { store<usize>(JOB + 4 * i, value); }

/** How many threads there are, this one included. */
export function setThreads(count: i32): void { store<i32>(THREADS, count); }

function run(): void {
  const threads = load<i32>(THREADS);
  if (threads <= 1) return part(0, 1);
  atomic.store<i32>(DONE, 0);
  atomic.add<i32>(NUMBER, 1);
  atomic.notify(NUMBER, threads - 1);
  part(0, threads);
  // The others finish at about the same time, and a page's worker may not sleep here for long.
  while (atomic.load<i32>(DONE) < threads - 1) {}
}

/** What a helping thread does until it is told to leave: `index` from 1. */
export function help(index: i32, seen: i32): void {
  for (;;) {
    let spins = 0;
    while (atomic.load<i32>(NUMBER) == seen) if (++spins > SPINS) atomic.wait<i32>(NUMBER, seen, -1);
    seen++;
    if (load<i32>(JOB) == LEAVE) return;
    part(index, load<i32>(THREADS));
    atomic.add<i32>(DONE, 1);
  }
}

/** The number of the last job: what a new helper has `seen`. */
export function lastJob(): i32 { return atomic.load<i32>(NUMBER); }

export function dismiss(): void {
  store<i32>(JOB, LEAVE);
  atomic.add<i32>(NUMBER, 1);
  atomic.notify(NUMBER, -1);
}

function part(index: i32, threads: i32): void {
  const kind = load<i32>(JOB), all = argument(1);
  // Columns in groups of 8, so that no thread is left with the slow rest alone.
  const step: usize = kind == ATTEND ? 1 : 8, share = (all / step + <usize>threads - 1) / <usize>threads * step;
  const from = min(all, <usize>index * share), to = index == threads - 1 ? all : min(all, from + share);
  if (kind == BY_COLUMNS) float32.byColumns(argument(2), argument(3), argument(4), argument(5), argument(6), all, from, to, argument(7) + <usize>index * argument(8));
  else if (kind == BY_ROWS) float32.byRows(argument(2), argument(3), argument(4), argument(5), argument(6), all, from, to);
  else if (kind <= INT4_BLOCKS) {
    const q = argument(2), qs = argument(3), w = argument(4), ws = argument(5), y = argument(6), m = argument(7), k = argument(8), more = argument(9);
    if (ASC_FEATURE_RELAXED_SIMD) {
      if (kind == INT8_ROWS) relaxed.int8Rows(q, qs, w, ws, more, y, m, k, all, from, to);
      else if (kind == INT8_BLOCKS) relaxed.int8Blocks(q, qs, w, ws, y, m, k, all, from, to, more);
      else relaxed.int4Blocks(q, qs, w, ws, more, y, m, k, all, from, to);
    } else {
      if (kind == INT8_ROWS) quantized.int8Rows(q, qs, w, ws, y, m, k, all, from, to);
      else if (kind == INT8_BLOCKS) quantized.int8Blocks(q, qs, w, ws, y, m, k, all, from, to, more);
      else quantized.int4Blocks(q, qs, w, ws, more, y, m, k, all, from, to);
    }
  } else attention.attend(argument(2), argument(3), argument(4), argument(5), argument(6) + <usize>index * argument(7), argument(8), argument(9), all, argument(10), argument(11), load<f32>(JOB + 48), load<f32>(JOB + 52), argument(14), from, to);
}

/** y (m, n) = x (m, k) w (k, n). `panel` holds 8 k floats per thread, `panelBytes` apart. */
export function byColumns(x: usize, w: usize, y: usize, m: usize, k: usize, n: usize, panel: usize, panelBytes: usize): void {
  put(0, BY_COLUMNS); put(1, n); put(2, x); put(3, w); put(4, y); put(5, m); put(6, k); put(7, panel); put(8, panelBytes);
  run();
}

/** y (m, n) = x (m, k) w (n, k)^T. */
export function byRows(x: usize, w: usize, y: usize, m: usize, k: usize, n: usize): void {
  put(0, BY_ROWS); put(1, n); put(2, x); put(3, w); put(4, y); put(5, m); put(6, k);
  run();
}

/** See `quantized.int8Rows`; `sums` are those of `rowSums`. */
export function int8Rows(q: usize, qs: usize, w: usize, ws: usize, y: usize, m: usize, k: usize, n: usize, sums: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD) relaxed.toBytes(q, m * k, offset);
  quantizedProduct(INT8_ROWS, q, qs, w, ws, y, m, k, n, sums);
}

/** See `quantized.int8Blocks`. */
export function int8Blocks(q: usize, qs: usize, w: usize, ws: usize, y: usize, m: usize, k: usize, n: usize, size: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD) relaxed.splitBytes(q, m * k);
  quantizedProduct(INT8_BLOCKS, q, qs, w, ws, y, m, k, n, size);
}

/** See `quantized.int4Blocks`. */
export function int4Blocks(q: usize, qs: usize, w: usize, ws: usize, zs: usize, y: usize, m: usize, k: usize, n: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD) relaxed.splitBytes(q, m * k);
  quantizedProduct(INT4_BLOCKS, q, qs, w, ws, y, m, k, n, zs);
}

function quantizedProduct(kind: i32, q: usize, qs: usize, w: usize, ws: usize, y: usize, m: usize, k: usize, n: usize, more: usize): void {
  put(0, kind); put(1, n); put(2, q); put(3, qs); put(4, w); put(5, ws); put(6, y); put(7, m); put(8, k); put(9, more);
  run();
}

let offset: i32 = 0;

/** Whether this build's products are exact on this machine. Asked before any weight is read. */
export function usable(): bool {
  if (ASC_FEATURE_RELAXED_SIMD) offset = relaxed.dotOffset();
  return offset >= 0;
}

/** What `int8Rows` needs of the matrix w (n, k): a number for each row. */
export function rowSums(w: usize, sums: usize, n: usize, k: usize): void {
  if (ASC_FEATURE_RELAXED_SIMD) relaxed.rowSums(w, sums, n, k, offset);
}

/** See `attention.attend`; `scores` has room for a float per token and thread, `scoreBytes` apart. */
export function attend(
  q: usize, stride: usize, pages: usize, y: usize, scores: usize, scoreBytes: usize, m: usize, position: usize,
  heads: usize, kvHeads: usize, dim: usize, scale: f32, softcap: f32, window: usize,
): void {
  put(0, ATTEND); put(1, heads); put(2, q); put(3, stride); put(4, pages); put(5, y); put(6, scores); put(7, scoreBytes);
  put(8, m); put(9, position); put(10, kvHeads); put(11, dim); store<f32>(JOB + 48, scale); store<f32>(JOB + 52, softcap); put(14, window);
  run();
}
