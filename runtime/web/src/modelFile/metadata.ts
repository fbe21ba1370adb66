/** What a model file says about itself, held against what is in it. Format 1 is described in runtime/README.md. */
import { ModelFileError, TokenizerError } from "../errors.js";
import { Tokenizer, type TokenizerValues } from "../text/tokenizer.js";
import { checkConfig, type Config } from "./config.js";
import type { Layout } from "./layout.js";

export const FORMAT = 1;
const PREFIX = "edgelm.";
const EXPORT_AGAIN = "export the model again";

/** `edgelm.generation`: what ends and begins a text, and defaults for options. */
export interface GenerationDefaults {
  end_ids?: number[];
  bos_id?: number;
  add_bos?: boolean;
  eos_id?: number;
  add_eos?: boolean;
  chat_template?: string | null;
  [option: string]: unknown;
}

export interface GoldenLogits {
  ids: number[];
  values: number[];
  logsumexp: number;
}

export interface GoldenPrompt {
  text?: string;
  ids: number[];
  tokens: number[];
  logits: GoldenLogits[];
}

export interface Golden {
  atol: number;
  prompts: GoldenPrompt[];
}

export interface ModelFile {
  config: Config;
  tokenizer: Tokenizer | null;
  generation: GenerationDefaults;
  golden: Golden | null;
  digest: Record<string, string>;
  graph: Record<string, unknown>;
  outputs: ReadonlySet<string>;
  endIds: readonly number[];
}

/** Read the metadata. Throws ModelFileError where it is not an edgelm file, newer, incomplete or contradicts itself. */
export function readMetadata(layout: Layout, name: string): ModelFile {
  const { metadata } = layout;
  if (!metadata.has(PREFIX + "format")) {
    throw new ModelFileError(`${name} is an ONNX model without edgelm's metadata`, "give a file that edgelm exported");
  }
  const version = parsed(metadata, "format", name);
  if (version !== FORMAT) {
    throw new ModelFileError(`${name} is of format ${JSON.stringify(version)}, and this edgelm reads format ${FORMAT}`, "update edgelm");
  }
  const config = checkConfig(mapping(metadata, "config", name), name);
  const generation = mapping(metadata, "generation", name) as GenerationDefaults;
  const golden = mapping(metadata, "golden", name, true);
  const file: ModelFile = {
    config,
    tokenizer: readTokenizer(metadata, name),
    generation,
    golden: Array.isArray(golden.prompts) ? (golden as unknown as Golden) : null,
    digest: mapping(metadata, "digest", name, true) as Record<string, string>,
    graph: mapping(metadata, "graph", name, true),
    outputs: layout.outputs,
    endIds: generation.end_ids ?? [],
  };
  check(file, layout, name);
  return file;
}

function readTokenizer(metadata: Map<string, string>, name: string): Tokenizer | null {
  const values = metadata.has(PREFIX + "tokenizer") ? parsed(metadata, "tokenizer", name) : null;
  if (values === null) return null;
  try {
    return new Tokenizer(values as TokenizerValues);
  } catch (error) {
    if (error instanceof TokenizerError) throw new ModelFileError(`${name} has a tokenizer that cannot be read: ${error.problem}`, error.remedy || EXPORT_AGAIN);
    throw error;
  }
}

function check(file: ModelFile, layout: Layout, name: string): void {
  for (const [needed, present] of [["input_ids", layout.inputs], ["logits", layout.outputs]] as const) {
    if (!present.has(needed)) throw new ModelFileError(`${name} has no "${needed}" in its graph`, EXPORT_AGAIN);
  }
  const { vocab_size: vocab } = file.config;
  if (file.tokenizer && file.tokenizer.vocabSize > vocab) {
    throw new ModelFileError(`${name} has a tokenizer of ${file.tokenizer.vocabSize} ids for a vocabulary of ${vocab}`, EXPORT_AGAIN);
  }
  if (!Array.isArray(file.endIds) || file.endIds.some((id) => !Number.isInteger(id) || id < 0 || id >= vocab)) {
    throw new ModelFileError(`${name} has end ids ${JSON.stringify(file.endIds)} outside its vocabulary`, EXPORT_AGAIN);
  }
}

function parsed(metadata: Map<string, string>, key: string, name: string): unknown {
  const text = metadata.get(PREFIX + key);
  if (text === undefined) throw new ModelFileError(`${name} lacks the metadata entry ${PREFIX}${key}`, EXPORT_AGAIN);
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new ModelFileError(`${name} has a damaged entry ${PREFIX}${key}: ${(error as Error).message}`, EXPORT_AGAIN);
  }
}

function mapping(metadata: Map<string, string>, key: string, name: string, optional = false): Record<string, unknown> {
  if (optional && !metadata.has(PREFIX + key)) return {};
  const value = parsed(metadata, key, name);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new ModelFileError(`${name} has a damaged entry ${PREFIX}${key}: not an object`, EXPORT_AGAIN);
  }
  return value as Record<string, unknown>;
}
