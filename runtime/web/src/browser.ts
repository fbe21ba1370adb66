/** The package in a page: models run in a worker of their own, so that the page never waits for them. */
import { EdgelmError, OptionError } from "./errors.js";
import type { OnnxRuntime } from "./engine/onnxDecoder.js";
import { LanguageModel } from "./languageModel.js";
import { checkLoadOptions, type LoadOptions, type ModelBytes } from "./loadOptions.js";
import type { OpenOptions } from "./open.js";
import { fillTemplate } from "./text/fillTemplate.js";
import { shown } from "./validation.js";
import type * as Core from "./worker/core.js";
import { CORE } from "./worker/core.generated.js";
import type { SentModel, SentOptions } from "./worker/messages.js";
import { WorkerBackend } from "./worker/workerBackend.js";

export * from "./public.js";
export type { LoadOptions, ModelBytes };

/** Load a model file: a URL, a Blob or File, or bytes. Throws ModelFileError where it cannot be used. */
export async function load(model: string | URL | ModelBytes, options: LoadOptions = {}): Promise<LanguageModel> {
  const started = performance.now();
  checkLoadOptions(options);
  const { threads = 1, sidecar, cache, digest, onProgress, signal, onnxruntime } = options;
  if (threads > 1 && !globalThis.crossOriginIsolated) {
    throw new OptionError(
      `threads is ${threads}, and this page is not cross-origin isolated`,
      "serve it with Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp, or use one thread",
    );
  }
  const sent: SentOptions = {
    threads, ...(cache === undefined ? {} : { cache }), ...(digest === undefined ? {} : { digest }), ...(sidecar === undefined ? {} : { sidecar: sendable(sidecar) }),
  };
  const url = options.workerUrl === undefined ? URL.createObjectURL(new Blob([CORE], { type: "text/javascript" })) : String(options.workerUrl);
  try {
    const backend = options.worker === false || onnxruntime
      ? await ((await import(/* @vite-ignore */ /* webpackIgnore: true */ url)) as typeof Core).openHere(sendable(model), sent, { onProgress, ...(signal ? { signal } : {}), ...(onnxruntime ? { other: await onnxEngine(onnxruntime) } : {}) })
      : await WorkerBackend.open(startWorker(url), sendable(model), sent, onProgress, signal);
    return new LanguageModel(backend, fillTemplate, (performance.now() - started) / 1000);
  } finally {
    if (options.workerUrl === undefined) URL.revokeObjectURL(url);
  }
}

/** Loaded only where it is asked for. */
async function onnxEngine(onnxruntime: OnnxRuntime): Promise<NonNullable<OpenOptions["other"]>> {
  const { OnnxDecoder } = await import("./engine/onnxDecoder.js");
  return (source, file) => OnnxDecoder.open(onnxruntime, source, file);
}

function startWorker(url: string): Worker {
  try {
    return new Worker(url, { type: "module" });
  } catch (error) {
    throw new EdgelmError(`the model's worker cannot be started: ${(error as Error).message}`, "allow worker-src blob:, or give workerUrl");
  }
}

/** Bytes become a Blob, which the browser may keep outside of memory, and which is sent without being copied. */
function sendable(model: string | URL | ModelBytes): SentModel {
  if (typeof model === "string" || model instanceof URL) return { url: new URL(model, globalThis.document?.baseURI ?? globalThis.location?.href).href };
  if (model instanceof Blob) return { blob: model, name: model instanceof File ? model.name : "the model given as a Blob" };
  if (model instanceof ArrayBuffer || ArrayBuffer.isView(model)) return { blob: new Blob([model as Uint8Array<ArrayBuffer>]), name: "the model given as bytes" };
  throw new OptionError(`the model is ${shown(model)}`, "give a URL, a Blob or bytes");
}
