/** What a model does wherever it runs: in this thread, or in a worker that answers by messages. */
import type { ChatText } from "./text/chatTemplate.js";
import type { EmbedOptions } from "./embedding.js";
import type { ConstraintOptions, GenerateOptions } from "./generation/options.js";
import type { Piece, Stats } from "./generation/results.js";
import type { Config } from "./modelFile/config.js";
import type { GenerationDefaults } from "./modelFile/metadata.js";
import type { VerifyReport } from "./reports/verify.js";
import type { Score, ScoreOptions } from "./scoring.js";
import type { AllowedSpecial } from "./text/tokenizer.js";

/** Text, or token ids. */
export type Prompt = string | readonly number[] | Int32Array;

/** What a program may want to know of a model. */
export interface ModelInfo {
  config: Config;
  contextLength: number;
  vocabSize: number;
  generation: GenerationDefaults;
  /** Text of special tokens, and their ids; null for a model that takes and gives ids only. */
  special: Record<string, number> | null;
  prefixSpace: string;
  /** SHA-256 of the graph. */
  digest: string;
  /** Threads that compute. */
  threads: number;
}

/** One call of `generate` or `stream`. */
export interface Request {
  prompts: readonly Prompt[];
  n: number;
  options: Omit<GenerateOptions, "signal" | "onToken"> & ConstraintOptions;
}

/** Pieces as they come, and the counts so far with each. */
export type Pieces = AsyncGenerator<[Piece, Stats], void, void>;

export interface Backend {
  readonly info: ModelInfo;
  encode(text: string, allowedSpecial: AllowedSpecial): Promise<number[]>;
  encodePrompt(prompt: Prompt): Promise<number[]>;
  encodeChat(prompt: ChatText): Promise<number[]>;
  decode(ids: readonly number[], skipSpecial: boolean): Promise<string>;
  /** Checks what is asked for, then gives its pieces. Ending the iteration ends the work. */
  generate(request: Request, signal: AbortSignal | undefined): Promise<Pieces>;
  score(text: Prompt, options: ScoreOptions): Promise<Score>;
  /** Rows of each text: one, or one for each token where they are not pooled. */
  embed(texts: readonly Prompt[], options: EmbedOptions): Promise<Float32Array[][]>;
  logits(ids: readonly number[]): Promise<Float32Array[]>;
  verify(): Promise<VerifyReport>;
  memoryBytes(): Promise<number>;
  close(): Promise<void>;
}
