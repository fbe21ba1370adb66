/** From a Source to a model that runs in this thread. */
import { Engine } from "./engine/engine.js";
import { LocalBackend, type OpenDecoder } from "./localBackend.js";
import { readLayout } from "./modelFile/layout.js";
import { readMetadata, type ModelFile } from "./modelFile/metadata.js";
import type { Source } from "./modelFile/source.js";
import { checkGolden } from "./reports/verify.js";

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
  /** Opens another engine than edgelm's own. */
  other?: (source: Source, file: ModelFile) => Promise<OpenDecoder>;
}

/**
 * Open a model. Throws ModelFileError where the file is damaged, newer, or of a form that is not known,
 * VerificationError where this machine does not compute what was exported.
 */
export async function openModel(source: Source, { threads, sidecar, onProgress, other }: OpenOptions): Promise<LocalBackend> {
  const layout = await readLayout(source), file = readMetadata(layout, source.name);
  const progress = (loaded: number): void => onProgress?.({ stage: "open", loaded, total: source.size + (sidecar?.size ?? 0) });
  const decoder = other
    ? await other(source, file)
    : await Engine.open(layout, file.config, source, { threads, sidecar, progress });
  try {
    await checkGolden(source.name, file, decoder);
  } catch (error) {
    decoder.close();
    throw error;
  }
  return new LocalBackend(file, decoder, source, sidecar, other ? 0 : threads);
}
