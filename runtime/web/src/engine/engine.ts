/** The engine for files of edgelm: opens the weights, and answers as a decoder that remembers what it has seen. */
import type { Decoder } from "../generation/decoder.js";
import type { Config } from "../modelFile/config.js";
import type { Layout } from "../modelFile/layout.js";
import type { Source } from "../modelFile/source.js";
import { Heap, openKernels } from "./kernels.js";
import { readParameters } from "./parameters.js";
import { startHelpers, type Helpers } from "./threads.js";
import { MOST, Transformer } from "./transformer.js";
import { weightBytes, WeightReader } from "./weights.js";

export interface EngineOptions {
  threads: number;
  sidecar: Source | null;
  /** Told the bytes of weights read so far. */
  progress: (bytes: number) => void;
}

export class Engine implements Decoder {
  /** A step costs about as much as feeding this many tokens more, measured with SmolLM2. */
  readonly passCost = 4;
  private held = new Int32Array(0);

  private constructor(
    private readonly config: Config, private transformer: Transformer | null, private helpers: Helpers | null, private heap: Heap | null,
  ) {}

  static async open(layout: Layout, config: Config, source: Source, options: EngineOptions): Promise<Engine> {
    const { threads } = options, heap = new Heap(threads > 1);
    heap.reserve(weightBytes(layout));
    const opened = await openKernels(heap, threads > 1);
    const helpers = threads > 1 ? await startHelpers(opened, heap, threads) : null;
    try {
      const reader = new WeightReader(layout, source, options.sidecar, heap, opened, options.progress);
      const parameters = await readParameters(reader, layout, config);
      return new Engine(config, new Transformer(heap, opened.kernels, config, parameters, threads), helpers, heap);
    } catch (error) {
      helpers?.dismiss();
      throw error;
    }
  }

  get contextLength(): number {
    return this.config.context_length;
  }

  get vocabSize(): number {
    return this.config.vocab_size;
  }

  /** Bytes of WebAssembly memory: weights, cache and buffers. */
  get memoryBytes(): number {
    return this.heap?.size ?? 0;
  }

  /** Logits at the last `count` positions of `ids`; what `ids` have in common with those of the last call is not computed again. */
  async logits(ids: Int32Array, count: number): Promise<Float32Array[]> {
    const known = Math.min(commonLength(this.held, ids), ids.length - count);
    this.held = ids.slice(0, known); // should a pass fail
    const found: Float32Array[] = [];
    for (let at = known; at < ids.length; at += MOST) {
      const part = ids.subarray(at, at + MOST), wanted = Math.max(0, at + part.length - Math.max(at, ids.length - count));
      found.push(...this.running.pass(part, at, { logits: wanted }));
    }
    this.held = ids.slice();
    return found;
  }

  /** States (width) of each of `ids`: after the final norm, or token plus position embeddings. */
  async states(ids: Int32Array, layer: "hidden" | "embeddings"): Promise<Float32Array[]> {
    this.held = new Int32Array(0);
    const found: Float32Array[] = [];
    for (let at = 0; at < ids.length; at += MOST) {
      found.push(...this.running.pass(ids.subarray(at, at + MOST), at, { logits: 0, hidden: layer === "hidden", embeddings: layer === "embeddings" }));
    }
    return found;
  }

  /** Give the memory back. */
  close(): void {
    this.helpers?.dismiss();
    this.transformer = this.helpers = this.heap = null;
  }

  private get running(): Transformer {
    if (!this.transformer) throw new TypeError("the engine was closed");
    return this.transformer;
  }
}

function commonLength(a: Int32Array, b: Int32Array): number {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i++;
  return i;
}
