/** From the weights of a model file to memory that the kernels read, in the form that suits them. */
import { ModelFileError } from "../errors.js";
import { FLOAT, FLOAT16, INT8, UINT8, type Layout, type Tensor } from "../modelFile/layout.js";
import type { Source } from "../modelFile/source.js";
import { LANES, type Heap, type Kernels, type OpenKernels } from "./kernels.js";
import type { Matrix } from "./matrix.js";

const SIZES: Record<number, number> = { [FLOAT]: 4, [FLOAT16]: 2, [INT8]: 1, [UINT8]: 1 };
/** What a module's weights are called; what a tracer made has other names. */
const PARAMETER = /\.(weight|bias)(\.|$)/;
const up = (value: number, step: number): number => Math.ceil(value / step) * step;

/** About the memory that the weights take: their bytes, twice where they are widened. */
export function weightBytes(layout: Layout): number {
  return [...layout.tensors.values()].reduce((sum, { start, end, type }) => sum + (end - start) * (type === FLOAT16 ? 2 : 1), 0);
}

export class WeightReader {
  private spare = 0;
  private spareSize = 0;
  private read = 0;
  private readonly seen = new Set<string>();
  private readonly kernels: Kernels;

  /** `progress` is told the bytes read so far. */
  constructor(
    private readonly layout: Layout, private readonly source: Source, private readonly sidecar: Source | null,
    private readonly heap: Heap, private readonly opened: OpenKernels, private readonly progress: (bytes: number) => void,
  ) {
    this.kernels = opened.kernels;
  }

  /** Throws ModelFileError for a weight of the model that nothing has read: it belongs to a computation that is not known here. */
  checkAllRead(): void {
    const left = [...this.layout.tensors.keys()].find((name) => PARAMETER.test(name) && !this.seen.has(name));
    if (left) throw new ModelFileError(`${this.source.name} has the weight ${left}, which this engine does not know`, "update edgelm, or load with onnxruntime");
  }

  has(name: string): boolean {
    return this.layout.tensors.has(name) || this.layout.tensors.has(name + ".fp16");
  }

  /** Address of float32 numbers, or of none (0) where the file may lack them. */
  async vector(name: string, length: number, optional = false): Promise<number> {
    if (optional && !this.has(name)) return 0;
    return this.floats(this.one(name), [length]);
  }

  /** Address of a float32 matrix (rows, columns) that is only read row by row. */
  async table(name: string, rows: number, columns: number): Promise<number> {
    return this.floats(this.one(name), [rows, columns]);
  }

  /** The matrix (n, k) called `name`. Float matrices lie as (k, n), unless `byRows`; int8 ones too, unless `int8ByRows`. */
  async matrix(name: string, n: number, k: number, byRows = false, int8ByRows = byRows): Promise<Matrix> {
    const { tensors } = this.layout;
    const int4 = tensors.get(name + ".int4"), int8 = tensors.get(name + ".int8");
    if (int4) return this.blocks4(int4, name + ".int4", n, k);
    if (int8 && int8.dims.length === 3) return this.blocks8(int8, name + ".int8", n, k);
    if (int8) return this.int8Rows(int8, name, n, k, int8ByRows);
    const w = await this.floats(this.one(name), byRows ? [n, k] : [k, n]);
    return { form: byRows ? "rows" : "columns", w, n, k };
  }

  private async int8Rows(tensor: Tensor, name: string, n: number, k: number, byRows: boolean): Promise<Matrix> {
    this.expect(tensor, [INT8], byRows ? [n, k] : [k, n]);
    const padded = up(k, 16), w = this.heap.allocate(n * padded);
    if (byRows && padded === k) await this.copy(tensor, w);
    else {
      const raw = await this.toSpare(tensor);
      if (byRows) this.kernels.padRows8(raw, w, n, k, padded, 0);
      else this.kernels.transpose8(raw, w, k, n, padded);
    }
    const sums = this.opened.relaxed ? this.heap.allocate(4 * n) : 0;
    this.kernels.rowSums(w, sums, n, padded);
    return { form: "int8", w, n, k, padded, sums, scales: await this.vector(name + ".scale", n) };
  }

  private async blocks8(tensor: Tensor, name: string, n: number, k: number): Promise<Matrix> {
    const [, blocks = 0, size = 0] = tensor.dims;
    this.expect(tensor, [UINT8], [n, blocks, size]);
    if (size % 16 || blocks < Math.ceil(k / size)) throw this.unknown(tensor);
    const padded = blocks * size, w = this.heap.allocate(n * padded);
    this.kernels.padRows8(await this.toSpare(tensor), w, n, padded, padded, 128);
    return this.inBlocks8(name, w, n, k, blocks, size);
  }

  private async blocks4(tensor: Tensor, name: string, n: number, k: number): Promise<Matrix> {
    const [, blocks = 0, half = 0] = tensor.dims, size = 2 * half;
    this.expect(tensor, [UINT8], [n, blocks, half]);
    if (size % 16 || blocks < Math.ceil(k / size)) throw this.unknown(tensor);
    const zeros = this.heap.allocate(n * blocks), padded = blocks * size, means = blocks > Math.ceil(k / size) ? size : 0;
    const packed = this.layout.tensors.get(name + ".zero_points");
    if (packed) this.kernels.unpackZeros(await this.toSpare(packed), zeros, n, blocks);
    else this.heap.u8.fill(8, zeros, zeros + n * blocks);
    if (size === 32) {
      const w = this.heap.allocate(n * blocks * 16);
      await this.copy(tensor, w);
      this.kernels.pairNibbles(w, n * blocks);
      this.kernels.orderLanes(w, n * blocks * 16);
      return { form: "blocks4", w, zeros, scales: await this.floats(this.one(name + ".scales"), [n, blocks]), n, k, padded, means };
    }
    const w = this.heap.allocate(n * padded);
    this.kernels.unpackNibbles(await this.toSpare(tensor), zeros, w, n * blocks, size);
    return this.inBlocks8(name, w, n, k, blocks, size);
  }

  private async inBlocks8(name: string, w: number, n: number, k: number, blocks: number, size: number): Promise<Matrix> {
    const padded = blocks * size, means = blocks > Math.ceil(k / size) ? size : 0;
    this.kernels.orderLanes(w, n * padded);
    const scales = await this.floats(this.one(name + ".scales"), [n, blocks]);
    return { form: "blocks8", w, scales, n, k, padded, size, means, order: this.opened.relaxed ? LANES : null };
  }

  /** Address of a float tensor of `dims`, as float32. */
  private async floats(tensor: Tensor, dims: number[]): Promise<number> {
    this.expect(tensor, [FLOAT, FLOAT16], dims);
    const count = dims.reduce((a, b) => a * b, 1), to = this.heap.allocate(4 * count);
    if (tensor.type === FLOAT) await this.copy(tensor, to);
    else this.kernels.halfToFloat(await this.toSpare(tensor), to, count);
    return to;
  }

  private one(name: string): Tensor {
    const found = this.layout.tensors.get(name) ?? this.layout.tensors.get(name + ".fp16");
    if (!found) throw new ModelFileError(`${this.source.name} has no weight ${name} in a form that this engine knows`, "export the model again, or update edgelm");
    return found;
  }

  private expect(tensor: Tensor, types: number[], dims: number[]): void {
    const count = dims.reduce((a, b) => a * b, 1) * (SIZES[tensor.type] ?? 0);
    // Scales of blocks may be stored flat.
    const same = tensor.dims.join() === dims.join() || tensor.dims.join() === String(dims.reduce((a, b) => a * b, 1));
    if (!types.includes(tensor.type) || !same || tensor.end - tensor.start !== count) throw this.unknown(tensor);
  }

  private unknown(tensor: Tensor): ModelFileError {
    return new ModelFileError(
      `${this.source.name} has the weight ${tensor.name} of ONNX type ${tensor.type} and shape ${tensor.dims.join(" x ")}, in ${tensor.end - tensor.start} bytes`,
      "export the model again, or update edgelm",
    );
  }

  /** Bytes of `tensor` in memory that the next call takes again. */
  private async toSpare(tensor: Tensor): Promise<number> {
    const size = tensor.end - tensor.start;
    if (size > this.spareSize) {
      this.spare = this.heap.allocate(size);
      this.spareSize = size;
    }
    await this.copy(tensor, this.spare);
    return this.spare;
  }

  private async copy(tensor: Tensor, to: number): Promise<void> {
    this.seen.add(tensor.name);
    const source = tensor.external ? this.sidecar : this.source;
    if (!source) throw new ModelFileError(`${this.source.name} keeps its weights in a file beside it`, "give it as the option sidecar");
    const size = tensor.end - tensor.start;
    let got: number;
    if (source.readInto) got = await source.readInto(tensor.start, tensor.end, this.heap.u8.subarray(to, to + size));
    else {
      const bytes = await source.read(tensor.start, tensor.end);
      this.heap.u8.set(bytes, to);
      got = bytes.length;
    }
    if (got !== size) throw new ModelFileError(`${source.name} is cut off`, "copy, download or export it again");
    this.progress((this.read += size));
  }
}
