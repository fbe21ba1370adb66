/** The weights of a transformer, by the names that format 1 promises. */
import { ModelFileError } from "../errors.js";
import type { Config } from "../modelFile/config.js";
import { FLOAT, type Layout } from "../modelFile/layout.js";
import type { Matrix } from "./matrix.js";
import type { WeightReader } from "./weights.js";

/** Addresses of a norm's gain and bias (0: none). */
export interface Norm {
  gain: number;
  bias: number;
}

export interface Linear {
  matrix: Matrix;
  bias: number;
}

export interface Block {
  attentionNorm: Norm | null;
  qkv: Linear;
  queryNorm: Norm | null;
  keyNorm: Norm | null;
  out: Linear;
  attentionPostNorm: Norm | null;
  mlpNorm: Norm | null;
  up: Linear;
  down: Linear;
  mlpPostNorm: Norm | null;
}

export interface Parameters {
  embedding: Matrix;
  /** Factor of each feature of the embedding; 0: none. */
  smoothing: number;
  /** Learned positions (context, width); 0: none. */
  positions: number;
  blocks: Block[];
  finalNorm: Norm;
  head: Linear;
}

/** Read all weights. Throws ModelFileError for one that is missing or of an unknown form. */
export async function readParameters(reader: WeightReader, layout: Layout, config: Config): Promise<Parameters> {
  const { width, vocab_size: vocab, num_heads: heads, num_kv_heads: kvHeads, head_dim: dim, mlp_width: inner } = config;
  const norm = async (name: string, size = width): Promise<Norm> => ({
    gain: await reader.vector(`${name}.weight`, size),
    bias: config.norm === "layernorm" && config.norm_bias ? await reader.vector(`${name}.bias`, size) : 0,
  });
  const linear = async (name: string, n: number, k: number, bias: boolean): Promise<Linear> => ({
    matrix: await reader.matrix(`${name}.weight`, n, k),
    bias: bias ? await reader.vector(`${name}.bias`, n) : 0,
  });
  const block = async (name: string): Promise<Block> => ({
    attentionNorm: config.pre_norm ? await norm(`${name}.attention_norm`) : null,
    qkv: await linear(`${name}.attention.qkv`, (heads + 2 * kvHeads) * dim, width, config.qkv_bias),
    queryNorm: config.query_key_norm ? await norm(`${name}.attention.query_norm`, config.query_key_norm_joint ? heads * dim : dim) : null,
    keyNorm: config.query_key_norm ? await norm(`${name}.attention.key_norm`, config.query_key_norm_joint ? kvHeads * dim : dim) : null,
    out: await linear(`${name}.attention.out`, width, heads * dim, config.attention_bias),
    attentionPostNorm: config.post_norm ? await norm(`${name}.attention_post_norm`) : null,
    mlpNorm: config.pre_norm ? await norm(`${name}.mlp_norm`) : null,
    up: await linear(`${name}.mlp.up`, config.gated_mlp ? 2 * inner : inner, width, config.mlp_bias),
    down: await linear(`${name}.mlp.down`, width, inner, config.mlp_bias),
    mlpPostNorm: config.post_norm ? await norm(`${name}.mlp_post_norm`) : null,
  });

  // The head lies as (vocab, width), since a tied one is the embedding; one that is not tied lies as (width, vocab) in int8.
  const head = await reader.matrix("head.weight", vocab, width, true, config.tied_head);
  const embedding = config.tied_head ? head : await reader.matrix("token_embedding.weight", vocab, width, true, true);
  const positions = config.position === "learned" ? await reader.table(positionsName(layout, config), config.context_length, width) : 0;
  const blocks: Block[] = [];
  for (let layer = 0; layer < config.num_layers; layer++) blocks.push(await block(`blocks.${layer}`));
  const smoothing = await reader.vector("smoothing.embedding", width, true), finalNorm = await norm("final_norm");
  const bias = config.head_bias ? await reader.vector("head.bias", vocab) : 0;
  reader.checkAllRead();
  return { embedding, positions, blocks, smoothing, finalNorm, head: { matrix: head, bias } };
}

/** Files that were exported before the name was promised may call the table of positions as their tracer did. */
function positionsName(layout: Layout, config: Config): string {
  const promised = "position_embedding.weight";
  if (layout.tensors.has(promised) || layout.tensors.has(promised + ".fp16")) return promised;
  const shape = `${config.context_length},${config.width}`;
  const found = [...layout.tensors.values()].filter(({ name, dims, type }) => /^[^.]+(\.fp16)?$/.test(name) && dims.join() === shape && (type === FLOAT || name.endsWith(".fp16")));
  if (found.length !== 1) throw new ModelFileError("the file has no weight position_embedding.weight", "export the model again");
  return found[0]!.name.replace(/\.fp16$/, "");
}
