/** The architecture of a model, as `edgelm.config` has it. Names are those of the file. */
import { ModelFileError } from "../errors.js";

export interface RopeScaling {
  kind: "linear" | "llama3" | "yarn" | "divisors";
  factor: number;
  original_context: number;
  low_freq_factor: number;
  high_freq_factor: number;
  beta_fast: number;
  beta_slow: number;
  attention_factor: number | null;
  divisors: number[];
}

export interface Config {
  vocab_size: number;
  context_length: number;
  width: number;
  num_layers: number;
  num_heads: number;
  num_kv_heads: number;
  head_dim: number;
  mlp_width: number;
  num_experts: number;
  experts_per_token: number;
  normalize_experts: boolean;
  shared_mlp_width: number;
  norm: "layernorm" | "rmsnorm";
  norm_eps: number;
  norm_bias: boolean;
  activation: "relu" | "gelu" | "gelu_tanh" | "silu";
  gated_mlp: boolean;
  qkv_bias: boolean;
  attention_bias: boolean;
  mlp_bias: boolean;
  head_bias: boolean;
  tied_head: boolean;
  position: "learned" | "rotary";
  rotary_dim: number;
  rope_theta: number;
  rope_scaling: RopeScaling | null;
  convolution_layers: boolean[];
  convolution_length: number;
  convolution_bias: boolean;
  sliding_window: number;
  local_layers: boolean[];
  local_rope_theta: number;
  attention_scale: number;
  query_key_norm: boolean;
  query_key_norm_joint: boolean;
  query_key_norm_rotated: boolean;
  pre_norm: boolean;
  rotary_layers: boolean[];
  parallel_residual: boolean;
  post_norm: boolean;
  embedding_scale: number;
  attention_softcap: number;
  logit_softcap: number;
  dropout: number;
  init: string;
}

type Check = (value: unknown) => boolean;
const from = (least: number): Check => (value) => Number.isSafeInteger(value) && (value as number) >= least;
const flag: Check = (value) => typeof value === "boolean";
const finite: Check = (value) => typeof value === "number" && Number.isFinite(value);
const one = (...choices: string[]): Check => (value) => choices.includes(value as string);

// What every field may be. A field that is not here changes the computation in a way that this engine does not know.
const FIELDS: Record<keyof Config, Check> = {
  vocab_size: from(1), context_length: from(1), width: from(1), num_layers: from(1), num_heads: from(1),
  num_kv_heads: from(1), head_dim: from(1), mlp_width: from(1),
  num_experts: from(0), experts_per_token: from(0), normalize_experts: flag, shared_mlp_width: from(0),
  norm: one("layernorm", "rmsnorm"), norm_eps: finite, norm_bias: flag,
  activation: one("relu", "gelu", "gelu_tanh", "silu"), gated_mlp: flag,
  qkv_bias: flag, attention_bias: flag, mlp_bias: flag, head_bias: flag, tied_head: flag,
  position: one("learned", "rotary"), rotary_dim: from(0), rope_theta: finite,
  rope_scaling: (value) => value === null || (typeof value === "object" && ["linear", "llama3", "yarn", "divisors"].includes((value as RopeScaling).kind)),
  convolution_layers: (value) => Array.isArray(value) && value.every(flag), convolution_length: from(0), convolution_bias: flag,
  sliding_window: from(0), local_layers: (value) => Array.isArray(value) && value.every(flag), local_rope_theta: finite,
  attention_scale: finite, query_key_norm: flag, query_key_norm_joint: flag, query_key_norm_rotated: flag, pre_norm: flag,
  rotary_layers: (value) => Array.isArray(value) && value.every(flag), parallel_residual: flag, post_norm: flag, embedding_scale: finite,
  attention_softcap: finite, logit_softcap: finite, dropout: finite, init: (value) => typeof value === "string",
};

// What older files leave out.
const DEFAULTS: Partial<Config> = {
  query_key_norm_joint: false, query_key_norm_rotated: false, pre_norm: true, rotary_layers: [],
  num_experts: 0, experts_per_token: 0, normalize_experts: true, shared_mlp_width: 0,
  convolution_layers: [], convolution_length: 0, convolution_bias: false,
};

/** Check what the file says. Throws ModelFileError that names the field. */
export function checkConfig(given: Record<string, unknown>, name: string): Config {
  const values: Record<string, unknown> = { ...DEFAULTS, ...given };
  for (const [field, check] of Object.entries(FIELDS)) {
    if (!check(values[field])) {
      throw new ModelFileError(`${name} has ${field} = ${JSON.stringify(values[field])} in its configuration`, "update edgelm, or export the model again");
    }
  }
  const unknown = Object.keys(values).find((field) => !Object.hasOwn(FIELDS, field));
  if (unknown) throw new ModelFileError(`${name} has the unknown model field ${unknown}`, "update edgelm");
  const part = values.num_experts ? `${values.num_experts} experts in each layer` : values.convolution_length ? "convolutions in the place of attention"
    : values.query_key_norm_rotated ? "query and key norms after the rotation" : null;
  if (part) throw new ModelFileError(`${name} has ${part}, which the JavaScript runtime does not compute`, "run it with Python's edgelm_runtime");
  return values as unknown as Config;
}

/** Whether `layer` sees only the last `sliding_window` tokens. */
export function isLocal(config: Config, layer: number): boolean {
  return config.sliding_window > 0 && (config.local_layers[layer % config.local_layers.length] ?? false);
}

/** Whether queries and keys of `layer` are rotated by their positions. */
export function rotates({ position, rotary_layers: layers }: Config, layer: number): boolean {
  return position === "rotary" && (!layers.length || layers[layer % layers.length]!);
}
