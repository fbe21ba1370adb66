/** What a page and its worker say to each other. */
import type { Request } from "../backend.js";
import type { ModelInfo } from "../backend.js";
import type { LoadOptions } from "../loadOptions.js";
import type { Piece, Stats } from "../generation/results.js";
import type { Progress } from "../open.js";

/** A model as it can be sent: an address, or bytes that the browser keeps. */
export type SentModel = { url: string } | { blob: Blob; name: string };

export type SentOptions = Pick<LoadOptions, "threads" | "cache" | "digest"> & { sidecar?: SentModel };

export interface PlainError {
  name: string;
  problem: string;
  remedy: string;
}

/** From the page: a call, or something about one under way. */
export type ToWorker =
  | { kind: "open"; id: number; model: SentModel; options: SentOptions }
  | { kind: "call"; id: number; method: "encode" | "encodePrompt" | "encodeChat" | "decode" | "score" | "embed" | "logits" | "verify" | "memoryBytes" | "close"; args: unknown[] }
  | { kind: "generate"; id: number; request: Request; process: boolean }
  | { kind: "cancel"; id: number }
  | { kind: "processed"; id: number; logits: Float32Array | null; error: PlainError | null };

/** From the worker: an answer, or something on the way to it. */
export type FromWorker =
  | { kind: "opened"; id: number; info: ModelInfo }
  | { kind: "result"; id: number; value: unknown }
  | { kind: "error"; id: number; error: PlainError }
  | { kind: "progress"; id: number; progress: Progress }
  | { kind: "started"; id: number }
  | { kind: "piece"; id: number; piece: Piece; stats: Stats }
  | { kind: "process"; id: number; ids: Int32Array; logits: Float32Array };
