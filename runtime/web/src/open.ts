/** From a Source to a model that runs in this thread. */
import { Engine } from "./engine/engine.js";
import { OnnxDecoder, type OnnxRuntime } from "./engine/onnxDecoder.js";
import { LocalBackend } from "./localBackend.js";
import { readLayout } from "./modelFile/layout.js";
import { readMetadata } from "./modelFile/metadata.js";
import type { Source } from "./modelFile/source.js";

/** Bytes of weights read so far, and in all. */
export interface Progress {
  stage: "download" | "open";
  loaded: number;
  /** 0 where it is not known. */
  total: number;
}

export interface OpenOptions {
  threads: number;
  sidecar: Source | null;
  onProgress: ((progress: Progress) => void) | undefined;
  onnxruntime: OnnxRuntime | undefined;
}

/** Open a model. Throws ModelFileError where the file is damaged, newer, or of a form that is not known. */
export async function openModel(source: Source, { threads, sidecar, onProgress, onnxruntime }: OpenOptions): Promise<LocalBackend> {
  const layout = await readLayout(source), file = readMetadata(layout, source.name);
  const progress = (loaded: number): void => onProgress?.({ stage: "open", loaded, total: source.size + (sidecar?.size ?? 0) });
  const decoder = onnxruntime
    ? await OnnxDecoder.open(onnxruntime, source, file)
    : await Engine.open(layout, file.config, source, { threads, sidecar, progress });
  return new LocalBackend(file, decoder, source, sidecar, onnxruntime ? 0 : threads);
}
