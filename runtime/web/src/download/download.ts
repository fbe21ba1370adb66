/** Getting a model from a server: with progress, and going on where a connection broke. */
import { DownloadError } from "../errors.js";
import type { LoadOptions } from "../loadOptions.js";

const TRIES = 5;
const FIRST_PAUSE = 500; // ms, doubled each time
/** Bytes after which what has arrived becomes a Blob, which a browser keeps outside of the page's memory. */
const BATCH = 1 << 23;

/** The bytes at `url`, or those of a stretch of it. Throws DownloadError, or an AbortError. */
export async function download(
  url: URL, { onProgress, signal }: Pick<LoadOptions, "onProgress" | "signal">, stretch?: [start: number, end: number],
): Promise<Blob> {
  const first = stretch?.[0] ?? 0;
  const parts: Blob[] = [];
  let recent: Uint8Array<ArrayBuffer>[] = [], recentBytes = 0, loaded = 0, total = 0, version: string | null = null;
  const settle = (): void => {
    parts.push(new Blob(recent));
    [recent, recentBytes] = [[], 0];
  };
  for (let attempt = 0; ; ) {
    const before = loaded;
    try {
      const response = await request(url, [first + loaded, stretch?.[1]], version, signal);
      if (stretch && response.status !== 206) throw new DownloadError(`${url} changed during the download`, "try again");
      if (loaded && response.status !== 206) [recent, parts.length, loaded, recentBytes] = [[], 0, 0, 0]; // it has changed, or cannot be had in part
      total = stretch ? stretch[1] - first : sizeOf(response, loaded);
      version = response.headers.get("etag") ?? response.headers.get("last-modified");
      for await (const part of chunks(response, signal)) {
        recent.push(part);
        recentBytes += part.length;
        loaded += part.length;
        if (recentBytes > BATCH) settle();
        onProgress?.({ stage: "download", loaded, total: Math.max(total, loaded) });
      }
      if (total && loaded < total) throw new TypeError("the connection broke");
      settle();
      return new Blob(parts);
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof DownloadError) throw error;
      attempt = loaded > before ? 1 : attempt + 1; // what brings something may be tried again
      if (attempt >= TRIES) throw new DownloadError(`cannot download ${url}: ${(error as Error).message}`, "check the address and the network");
      await pause(FIRST_PAUSE * 2 ** (attempt - 1), signal);
    }
  }
}

type Stretch = [start: number, end: number | undefined];

async function request(url: URL, [start, end]: Stretch, version: string | null, signal: AbortSignal | undefined): Promise<Response> {
  const headers: Record<string, string> = {};
  if (start || end !== undefined) headers.range = `bytes=${start}-${end === undefined ? "" : end - 1}`;
  // A weak tag cannot promise equal bytes.
  if (start && version && !version.startsWith("W/")) headers["if-range"] = version;
  const response = await fetch(url, { headers, ...(signal ? { signal } : {}) });
  if (response.ok) return response;
  const status = `${url} answered ${response.status} ${response.statusText}`.trim();
  if (response.status >= 500 || response.status === 429) throw new TypeError(status);
  throw new DownloadError(status, "check the address");
}

/** Bytes of the whole file; 0 where the server does not say, or says it of a compressed form. */
function sizeOf(response: Response, start: number): number {
  const length = Number(response.headers.get("content-length") ?? 0);
  return response.headers.get("content-encoding") || !length ? 0 : start + length;
}

async function* chunks(response: Response, signal: AbortSignal | undefined): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  const reader = response.body!.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      signal?.throwIfAborted();
      yield value;
    }
  } finally {
    void reader.cancel().catch(() => {});
  }
}

function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason as Error);
    }, { once: true });
  });
}
