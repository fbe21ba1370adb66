/** What runs in a page's worker: a model, and the answers to messages. A page may also import it and open a model itself. */
import type { Pieces } from "../backend.js";
import { errorFromPlain, errorToPlain, ModelFileError } from "../errors.js";
import type { LoadOptions } from "../loadOptions.js";
import type { LocalBackend } from "../localBackend.js";
import { blobSource } from "../modelFile/source.js";
import { openModel, type OpenOptions } from "../open.js";
import { cachedDownload, cachedSidecar } from "../download/cached.js";
import type { FromWorker, SentModel, SentOptions, ToWorker } from "./messages.js";

/** Open a model in this thread. */
export async function openHere(
  model: SentModel, options: SentOptions, rest: Pick<LoadOptions, "signal"> & Pick<OpenOptions, "onProgress" | "other">,
): Promise<LocalBackend> {
  const { threads = 1, digest } = options, { signal, ...open } = rest, { onProgress } = open;
  const downloadOptions: LoadOptions = {
    ...(options.cache === undefined ? {} : { cache: options.cache }), ...(digest === undefined ? {} : { digest }),
    ...(signal ? { signal } : {}), ...(onProgress ? { onProgress } : {}),
  };
  const get = async (sent: SentModel, download: (url: URL) => Promise<Blob>): Promise<Named> => {
    if ("blob" in sent) return sent;
    const url = new URL(sent.url);
    return { blob: await download(url), name: url.pathname.split("/").at(-1) || url.href };
  };
  const file = await get(model, (url) => cachedDownload(url, downloadOptions));
  const beside = options.sidecar ? await get(options.sidecar, (url) => cachedSidecar(url, file.blob, downloadOptions)) : null;
  const source = blobSource(file.blob, file.name), sidecar = beside && blobSource(beside.blob, beside.name);
  const backend = await openModel(source, { threads, sidecar, ...open });
  if (digest !== undefined && backend.info.digest !== digest) {
    await backend.close();
    throw new ModelFileError(`${source.name} has the digest ${backend.info.digest || "none"}`, `expected ${digest}`);
  }
  return backend;
}

type Named = { blob: Blob; name: string };

interface Port {
  postMessage(message: FromWorker): void;
  addEventListener(type: "message", listener: (event: MessageEvent<ToWorker>) => void): void;
}

/** Answer the messages that arrive at `port`. */
export function serve(port: Port): void {
  let backend: LocalBackend | null = null;
  const cancels = new Map<number, AbortController>();
  const processed = new Map<number, (message: ToWorker & { kind: "processed" }) => void>();

  async function open({ id, model, options }: ToWorker & { kind: "open" }): Promise<void> {
    backend = await openHere(model, options, {
      onProgress: (progress) => port.postMessage({ kind: "progress", id, progress }),
    });
    port.postMessage({ kind: "opened", id, info: backend.info });
  }

  async function call({ id, method, args }: ToWorker & { kind: "call" }): Promise<void> {
    const work = backend![method] as (...args: unknown[]) => Promise<unknown>;
    port.postMessage({ kind: "result", id, value: await work.apply(backend, args) });
  }

  async function generate({ id, request, process }: ToWorker & { kind: "generate" }): Promise<void> {
    const cancel = new AbortController();
    cancels.set(id, cancel);
    if (process) request.options.processor = (ids, logits) => askPage(id, ids, logits);
    try {
      const pieces: Pieces = await backend!.generate(request, cancel.signal);
      port.postMessage({ kind: "started", id });
      for await (const [piece, stats] of pieces) port.postMessage({ kind: "piece", id, piece, stats });
      port.postMessage({ kind: "result", id, value: null });
    } finally {
      cancels.delete(id);
    }
  }

  function askPage(id: number, ids: Int32Array, logits: Float32Array): Promise<Float32Array> {
    return new Promise((resolve, reject) => {
      processed.set(id, (message) => (message.logits ? resolve(message.logits) : reject(errorFromPlain(message.error!))));
      port.postMessage({ kind: "process", id, ids, logits });
    });
  }

  port.addEventListener("message", ({ data }) => {
    if (data.kind === "cancel") return cancels.get(data.id)?.abort();
    if (data.kind === "processed") return processed.get(data.id)?.(data);
    const work = data.kind === "open" ? open(data) : data.kind === "call" ? call(data) : generate(data);
    work.catch((error: unknown) => port.postMessage({ kind: "error", id: data.id, error: errorToPlain(error) }));
  });
}

declare const WorkerGlobalScope: undefined | (new () => object);
if (typeof WorkerGlobalScope !== "undefined" && self instanceof WorkerGlobalScope) serve(self as unknown as Port);
