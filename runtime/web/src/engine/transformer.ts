/** A decoder-only transformer with a cache, computed by the kernels. Reads top to bottom like `edgelm/model/transformer.py`. */
import { isLocal, rotates, type Config } from "../modelFile/config.js";
import { KvCache } from "./kvCache.js";
import type { Heap, Kernels } from "./kernels.js";
import { copyRow, Multiplier } from "./matrix.js";
import type { Block, Linear, Norm, Parameters } from "./parameters.js";
import { fillRotation, rotationOf, type Rotation } from "./rotary.js";

/** Tokens of one pass; longer texts take several. */
export const MOST = 64;
/** Rows of logits made at a time. */
const MOST_LOGITS = 16;
const ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu"];
const { fround } = Math;

/** What a pass is asked for besides the cache: logits or final states of its last positions. */
export interface Wanted {
  logits: number;
  hidden?: boolean;
  embeddings?: boolean;
}

export class Transformer {
  private readonly cache: KvCache;
  private readonly multiplier: Multiplier;
  private readonly full: Rotation | null;
  private readonly local: Rotation | null;
  // Addresses of the buffers of a pass.
  private readonly x: number;
  private readonly normed: number;
  private readonly qkv: number;
  private readonly mixed: number;
  private readonly attended: number;
  private readonly inner: number;
  private readonly active: number;
  private readonly logits: number;
  private readonly scores: number;
  private readonly angles: number[];

  constructor(
    private readonly heap: Heap, private readonly kernels: Kernels, private readonly config: Config,
    private readonly parameters: Parameters, threads: number,
  ) {
    const { width, num_heads: heads, num_kv_heads: kvHeads, head_dim: dim, mlp_width: mlp, vocab_size: vocab } = config;
    const rows = (features: number): number => heap.allocate(4 * MOST * features);
    const widest = Math.max(width, heads * dim, mlp);
    this.multiplier = new Multiplier(heap, kernels, MOST, widest + Math.ceil(widest / 16) + 64, threads);
    this.x = rows(width);
    this.normed = rows(width);
    this.qkv = rows((heads + 2 * kvHeads) * dim);
    this.mixed = rows(heads * dim);
    this.attended = rows(width);
    this.inner = rows(config.gated_mlp ? 2 * mlp : mlp);
    this.active = rows(mlp);
    this.logits = heap.allocate(4 * MOST_LOGITS * vocab);
    this.scores = heap.allocate(4 * config.context_length * threads);
    this.angles = [0, 1, 2, 3].map(() => heap.allocate(2 * MOST * config.rotary_dim));
    this.full = rotationOf(config, false);
    this.local = rotationOf(config, true);
    this.cache = new KvCache(heap, config);
  }

  /**
   * Compute tokens `ids` (1 to MOST) at positions from `position` on, the cache holding those before. Gives the last
   * `wanted.logits` rows of logits (vocab), or states (width) of all, as copies.
   */
  pass(ids: Int32Array, position: number, wanted: Wanted): Float32Array[] {
    const { config, parameters } = this, m = ids.length;
    this.cache.reserve(position + m);
    this.embed(ids, position);
    if (wanted.embeddings) return this.copies(this.x, m, config.width);
    this.prepareRotation(position, m);
    parameters.blocks.forEach((block, layer) => this.block(block, layer, m, position));
    const rows = wanted.hidden ? m : wanted.logits, start = this.x + 4 * (m - rows) * config.width;
    if (!rows) return [];
    this.norm(start, parameters.finalNorm, this.normed, rows, config.width);
    return wanted.hidden ? this.copies(this.normed, m, config.width) : this.head(rows);
  }

  private embed(ids: Int32Array, position: number): void {
    const { config: { width, embedding_scale: scale }, parameters: { embedding, smoothing, positions } } = this;
    for (const [g, id] of ids.entries()) {
      const x = this.x + 4 * g * width, at = x / 4;
      copyRow(this.heap, embedding, id, x);
      const { f32 } = this.heap;
      if (smoothing) for (let i = 0; i < width; i++) f32[at + i]! *= f32[smoothing / 4 + i]!;
      if (scale !== 1) for (let i = 0; i < width; i++) f32[at + i]! *= fround(scale);
    }
    if (positions) this.kernels.add(this.x, positions + 4 * position * width, ids.length * width);
  }

  private block(block: Block, layer: number, m: number, position: number): void {
    const { kernels, config } = this, { width } = config;
    this.preNorm(block.attentionNorm, m);
    this.attention(block, layer, m, position);
    if (block.attentionPostNorm) this.norm(this.attended, block.attentionPostNorm, this.attended, m, width);
    if (!config.parallel_residual) kernels.add(this.x, this.attended, m * width);
    this.preNorm(block.mlpNorm, m);
    if (config.parallel_residual) kernels.add(this.x, this.attended, m * width);
    this.linear(this.normed, block.up, this.inner, m);
    kernels.activate(ACTIVATIONS.indexOf(config.activation), Number(config.gated_mlp), this.inner, this.active, m, config.mlp_width);
    this.linear(this.active, block.down, this.attended, m);
    if (block.mlpPostNorm) this.norm(this.attended, block.mlpPostNorm, this.attended, m, width);
    kernels.add(this.x, this.attended, m * width);
  }

  /** From `normed` to `attended`. */
  private attention(block: Block, layer: number, m: number, position: number): void {
    const { kernels, config } = this, { num_heads: heads, num_kv_heads: kvHeads, head_dim: dim } = config;
    const stride = (heads + 2 * kvHeads) * dim, window = isLocal(config, layer) ? config.sliding_window : 0;
    this.linear(this.normed, block.qkv, this.qkv, m);
    if (block.queryNorm && block.keyNorm) {
      for (let g = 0; g < m; g++) {
        const row = this.qkv + 4 * g * stride, keys = row + 4 * heads * dim;
        const joint = config.query_key_norm_joint; // one norm over all heads together
        this.norm(row, block.queryNorm, row, joint ? 1 : heads, joint ? heads * dim : dim);
        this.norm(keys, block.keyNorm, keys, joint ? 1 : kvHeads, joint ? kvHeads * dim : dim);
      }
    }
    if (rotates(config, layer)) {
      const [cos, sin] = isLocal(config, layer) ? this.angles.slice(2) : this.angles;
      kernels.rotate(this.qkv, cos!, sin!, m, 0, heads + kvHeads, dim, config.rotary_dim / 2, stride);
    }
    this.cache.write(layer, this.qkv / 4 + heads * dim, stride, m, position);
    kernels.attend(
      this.qkv, stride, this.cache.table(layer), this.mixed, this.scores, 4 * config.context_length, m, position,
      heads, kvHeads, dim, config.attention_scale, config.attention_softcap, window,
    );
    this.linear(this.mixed, block.out, this.attended, m);
  }

  /** Logits of `rows` states in `normed`. */
  private head(rows: number): Float32Array[] {
    const { kernels, config: { width, vocab_size: vocab, logit_softcap: cap }, parameters: { head } } = this;
    const found: Float32Array[] = [];
    for (let start = 0; start < rows; start += MOST_LOGITS) {
      const m = Math.min(MOST_LOGITS, rows - start);
      this.linear(this.normed + 4 * start * width, head, this.logits, m);
      if (cap) kernels.softcap(this.logits, m * vocab, cap);
      found.push(...this.copies(this.logits, m, vocab));
    }
    return found;
  }

  private linear(x: number, { matrix, bias }: Linear, y: number, m: number): void {
    this.multiplier.multiply(x, matrix, y, m);
    if (bias) this.kernels.addBias(y, bias, m, matrix.n);
  }

  /** What a part of a block reads: the state, through a norm where there is one. */
  private preNorm(norm: Norm | null, m: number): void {
    const { width } = this.config;
    if (norm) this.norm(this.x, norm, this.normed, m, width);
    else this.heap.f32.copyWithin(this.normed / 4, this.x / 4, this.x / 4 + m * width);
  }

  private norm(x: number, { gain, bias }: Norm, y: number, m: number, size: number): void {
    if (this.config.norm === "rmsnorm") this.kernels.rmsNorm(x, gain, y, m, size, this.config.norm_eps);
    else this.kernels.layerNorm(x, gain, bias, y, m, size, this.config.norm_eps);
  }

  private prepareRotation(position: number, m: number): void {
    const [cos, sin, localCos, localSin] = this.angles.map((address) => address / 4);
    if (this.full) fillRotation(this.heap.f32, cos!, sin!, this.full, position, position + m);
    if (this.local) fillRotation(this.heap.f32, localCos!, localSin!, this.local, position, position + m);
  }

  private copies(address: number, rows: number, size: number): Float32Array[] {
    const { f32 } = this.heap, at = address / 4;
    return Array.from({ length: rows }, (_, row) => new Float32Array(f32.subarray(at + row * size, at + (row + 1) * size)));
  }
}
