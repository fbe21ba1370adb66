/** The package in Node: models run in the thread that loads them, and give it its turn after each pass. */
import { open, stat, type FileHandle } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { download } from "./download/download.js";
import { OnnxDecoder } from "./engine/onnxDecoder.js";
import { ModelFileError, OptionError } from "./errors.js";
import { LanguageModel } from "./languageModel.js";
import { checkLoadOptions, type LoadOptions, type ModelBytes } from "./loadOptions.js";
import { blobSource, bytesSource, type Source } from "./modelFile/source.js";
import { openModel } from "./open.js";
import { fillTemplate } from "./text/fillTemplate.js";
import { shown } from "./validation.js";

export * from "./public.js";
export type { LoadOptions, ModelBytes };

/** Load a model file: a path, a URL, a Blob or bytes. Throws ModelFileError where it cannot be used. */
export async function load(model: string | URL | ModelBytes, options: LoadOptions = {}): Promise<LanguageModel> {
  const started = performance.now();
  checkLoadOptions(options);
  const source = await sourceOf(model, options), sidecar = await sidecarOf(model, options);
  try {
    const { threads = 1, onProgress, onnxruntime } = options;
    const backend = await openModel(source, { threads, sidecar, onProgress, ...(onnxruntime ? { other: (...file) => OnnxDecoder.open(onnxruntime, ...file) } : {}) });
    if (options.digest !== undefined && backend.info.digest !== options.digest) {
      throw new ModelFileError(`${source.name} has the digest ${backend.info.digest || "none"}`, `expected ${options.digest}`);
    }
    return new LanguageModel(backend, fillTemplate, (performance.now() - started) / 1000);
  } catch (error) {
    await Promise.all([source.close(), sidecar?.close()]);
    throw error;
  }
}

async function sidecarOf(model: string | URL | ModelBytes, options: LoadOptions): Promise<Source | null> {
  if (options.sidecar !== undefined) return sourceOf(options.sidecar, options);
  const path = pathOf(model);
  if (path === null) return null;
  const beside = join(dirname(path), basename(path) + ".data");
  return (await stat(beside).catch(() => null)) ? fileSource(beside) : null;
}

async function sourceOf(model: string | URL | ModelBytes, options: LoadOptions): Promise<Source> {
  const path = pathOf(model);
  if (path !== null) return fileSource(path);
  if (typeof model === "string" || model instanceof URL) {
    return blobSource(await download(new URL(model), options), new URL(model).pathname.split("/").at(-1) || String(model));
  }
  if (model instanceof Blob) return blobSource(model);
  if (ArrayBuffer.isView(model)) return bytesSource(new Uint8Array(model.buffer, model.byteOffset, model.byteLength));
  if (model instanceof ArrayBuffer) return bytesSource(new Uint8Array(model));
  throw new OptionError(`the model is ${shown(model)}`, "give a path, a URL, a Blob or bytes");
}

/** The path that a string or URL names; null where it is something else. */
function pathOf(model: string | URL | ModelBytes): string | null {
  if (model instanceof URL) return model.protocol === "file:" ? fileURLToPath(model) : null;
  if (typeof model !== "string" || /^https?:\/\//i.test(model)) return null;
  return model.startsWith("file:") ? fileURLToPath(model) : model;
}

async function fileSource(path: string): Promise<Source> {
  let handle: FileHandle;
  try {
    handle = await open(path);
  } catch (error) {
    throw new ModelFileError(`cannot read ${path}: ${(error as NodeJS.ErrnoException).code}`, "check the path");
  }
  const { size } = await handle.stat();
  const readInto = async (start: number, end: number, target: Uint8Array): Promise<number> => {
    const wanted = Math.max(0, Math.min(end, size) - start);
    for (let at = 0; at < wanted; ) {
      const { bytesRead } = await handle.read(target, at, wanted - at, start + at);
      if (!bytesRead) return at;
      at += bytesRead;
    }
    return wanted;
  };
  const read = async (start: number, end: number): Promise<Uint8Array> => {
    const bytes = new Uint8Array(Math.max(0, Math.min(end, size) - start));
    return bytes.subarray(0, await readInto(start, end, bytes));
  };
  return { name: path, size, read, readInto, close: () => handle.close() };
}
