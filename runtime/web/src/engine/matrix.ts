/** Matrices in the forms that the kernels multiply by. */
import type { Heap, Kernels } from "./kernels.js";

interface Shape {
  /** Outputs. */
  n: number;
  /** Inputs. */
  k: number;
}

/** Addresses of a matrix (n, k), as its form wants them; `padded` is k as it is stored. */
export type Matrix = Shape &
  (
    | { form: "columns"; w: number }
    | { form: "rows"; w: number }
    | { form: "int8"; w: number; scales: number; sums: number; padded: number }
    | { form: "blocks8"; w: number; scales: number; padded: number; size: number; means: number; order: number[] | null }
    | { form: "blocks4"; w: number; scales: number; zeros: number; padded: number; means: number }
  );

/** Graphs of int8 rows round activations to 8 bits, and so must who wants the same text. */
const LEVELS_AS_IN_GRAPH = 127;
/** Where the graph does not say, 14 bits cost the same and lose nothing. */
const FINE_LEVELS = 8191;

/** Multiplies up to `most` rows at a time. */
export class Multiplier {
  private readonly rounded: number;
  private readonly scales: number;
  private readonly spare: number;
  private readonly panel: number;
  private readonly panelBytes: number;

  /** `widest` is the largest k, as stored, of the matrices to come. */
  constructor(
    heap: Heap, private readonly kernels: Kernels, most: number, widest: number, threads: number,
  ) {
    this.rounded = heap.allocate(2 * most * widest);
    this.scales = heap.allocate(4 * most);
    this.spare = heap.allocate(4 * most * widest);
    this.panelBytes = 32 * widest;
    this.panel = heap.allocate(threads * this.panelBytes);
  }

  /** y (m, n) = x (m, k) matrix^T; x and y are addresses. */
  multiply(x: number, matrix: Matrix, y: number, m: number): void {
    const { kernels } = this, { n, k } = matrix;
    if (matrix.form === "columns") kernels.byColumns(x, matrix.w, y, m, k, n, this.panel, this.panelBytes);
    else if (matrix.form === "rows") kernels.byRows(x, matrix.w, y, m, k, n);
    else if (matrix.form === "int8") {
      kernels.roundRows(x, this.rounded, this.scales, m, k, matrix.padded, LEVELS_AS_IN_GRAPH);
      kernels.int8Rows(this.rounded, this.scales, matrix.w, matrix.scales, y, m, matrix.padded, n, matrix.sums);
    } else {
      const { padded } = matrix;
      if (matrix.means) {
        kernels.withMeans(x, this.spare, m, k, matrix.means, padded);
        kernels.roundRows(this.spare, this.rounded, this.scales, m, padded, padded, FINE_LEVELS);
      } else kernels.roundRows(x, this.rounded, this.scales, m, k, padded, FINE_LEVELS);
      if (matrix.form === "blocks4") kernels.int4Blocks(this.rounded, this.scales, matrix.w, matrix.scales, matrix.zeros, y, m, padded, n);
      else kernels.int8Blocks(this.rounded, this.scales, matrix.w, matrix.scales, y, m, padded, n, matrix.size);
    }
  }
}

/** Row `index` of a matrix whose rows are vectors (an embedding), as float32 at `to`. */
export function copyRow(heap: Heap, matrix: Matrix, index: number, to: number): void {
  const { f32, i8 } = heap, { k } = matrix, out = to >> 2;
  if (matrix.form === "rows") {
    const from = (matrix.w >> 2) + index * k;
    f32.copyWithin(out, from, from + k);
  } else if (matrix.form === "int8") {
    const from = matrix.w + index * matrix.padded, scale = f32[(matrix.scales >> 2) + index]!;
    for (let i = 0; i < k; i++) f32[out + i] = i8[from + i]! * scale;
  } else if (matrix.form === "blocks8") {
    const from = matrix.w + index * matrix.padded, scales = (matrix.scales >> 2) + index * (matrix.padded / matrix.size);
    const { size, order } = matrix, at = (i: number): number => (order ? (i & ~15) + order[i & 15]! : i);
    for (let i = 0; i < k; i++) f32[out + i] = i8[from + at(i)]! * f32[scales + Math.floor(i / size)]!;
  } else throw new TypeError(`an embedding of form ${matrix.form}`);
}
