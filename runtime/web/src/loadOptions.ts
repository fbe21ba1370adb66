import type { OnnxRuntime } from "./engine/onnxDecoder.js";
import { OptionError } from "./errors.js";
import type { Progress } from "./open.js";
import { shown, whole } from "./validation.js";

/** Bytes of a model. */
export type ModelBytes = ArrayBuffer | Uint8Array | Blob;

export interface LoadOptions {
  /** Threads that compute; default 1. More need `crossOriginIsolated` in a page. */
  threads?: number;
  /** Told while the file is downloaded, and while it is opened. */
  onProgress?: (progress: Progress) => void;
  /** Ends the download; loading then fails with an AbortError. */
  signal?: AbortSignal;
  /** The file beside it, for models above 2 GB. */
  sidecar?: string | URL | ModelBytes;
  /** Keep what is downloaded in the browser's Cache API. Default true. */
  cache?: boolean;
  /** SHA-256 of the graph (`edgelm info --json`): a file with another one is refused, and one in the cache taken without asking the network. */
  digest?: string;
  /** In a page: compute in a worker of its own. Default true. */
  worker?: boolean;
  /** Where `dist/worker.js` lies, for pages whose content security policy forbids workers from blobs. */
  workerUrl?: string | URL;
  /** The module onnxruntime-web or onnxruntime-node, to run the graph by it and not by edgelm's engine. */
  onnxruntime?: OnnxRuntime;
}

const NAMES = ["threads", "onProgress", "signal", "sidecar", "cache", "digest", "worker", "workerUrl", "onnxruntime"];

/** Throws OptionError for an option that cannot be. */
export function checkLoadOptions(options: LoadOptions): void {
  const unknown = Object.keys(options).find((name) => !NAMES.includes(name));
  if (unknown) throw new OptionError(`unknown option ${shown(unknown)}`, `known are ${NAMES.join(", ")}`);
  if (options.threads !== undefined) whole("threads", options.threads, 1, 64);
}
