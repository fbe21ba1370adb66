/** Keys and values of the tokens seen so far, in pages that are added as the text grows. */
import type { Config } from "../modelFile/config.js";
import type { Heap } from "./kernels.js";

/** Tokens in a page; the kernels know it too (`attention.ts`). */
const PAGE = 64;

export class KvCache {
  private readonly pages: number[] = [];
  private readonly tables: number;
  private readonly most: number;
  private readonly layerBytes: number;

  constructor(
    private readonly heap: Heap, private readonly config: Config,
  ) {
    this.most = Math.ceil(config.context_length / PAGE);
    this.layerBytes = 2 * 4 * config.num_kv_heads * PAGE * config.head_dim;
    this.tables = heap.allocate(4 * config.num_layers * this.most);
  }

  /** Address of the list of pages of a layer. */
  table(layer: number): number {
    return this.tables + 4 * layer * this.most;
  }

  /** Make room for `tokens`. */
  reserve(tokens: number): void {
    while (this.pages.length * PAGE < tokens) {
      const page = this.heap.allocate(this.config.num_layers * this.layerBytes), index = this.pages.push(page) - 1;
      for (let layer = 0; layer < this.config.num_layers; layer++) {
        this.heap.u32[this.table(layer) / 4 + index] = page + layer * this.layerBytes;
      }
    }
  }

  /** Write keys and values of `m` tokens from `position` on: at float index `keys`, a row each `stride` floats, keys then values. */
  write(layer: number, keys: number, stride: number, m: number, position: number): void {
    const { f32 } = this.heap, { num_kv_heads: heads, head_dim: dim } = this.config;
    for (let g = 0; g < m; g++) {
      const at = position + g, page = (this.pages[Math.floor(at / PAGE)]! + layer * this.layerBytes) / 4, within = (at % PAGE) * dim;
      for (let part = 0; part < 2 * heads; part++) {
        const from = keys + g * stride + part * dim;
        f32.copyWithin(page + part * PAGE * dim + within, from, from + dim);
      }
    }
  }
}
