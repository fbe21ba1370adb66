/**
 * Models kept in the browser's Cache API, by the digest that they carry, so that a second visit needs no network.
 *
 * A model lies there in parts of PART bytes. The digest stands at the end of the file, so it is fetched first; then the
 * parts that are not there yet, also after a page was closed in the middle. What was downloaded is held against the
 * digest before it counts. A table from addresses to digests serves pages without a network.
 */
import { DownloadError, ModelFileError } from "../errors.js";
import type { LoadOptions } from "../loadOptions.js";
import { bytesDigest, fileDigest } from "../modelFile/digest.js";
import { blobSource } from "../modelFile/source.js";
import { download } from "./download.js";

const CACHE = "edgelm-models";
const PLACE = "https://edgelm.invalid/";
const PART = 1 << 24;
const TAIL = 1 << 14;
const DIGEST_KEY = "edgelm.digest";

/** What a file says it is. */
interface Identity {
  /** SHA-256 of the digest entry: a name for all of the file. */
  key: string;
  digest: Record<string, string>;
}

interface Entry extends Identity {
  size: number;
  complete: boolean;
}

/** The bytes at `url`, from the cache where they are. Throws DownloadError, ModelFileError, or an AbortError. */
export function cachedDownload(url: URL, options: LoadOptions): Promise<Blob> {
  return cached(url, options, null);
}

/** The same for the sidecar of a `model`, which says what its digest is. */
export async function cachedSidecar(url: URL, model: Blob, options: LoadOptions): Promise<Blob> {
  const sidecar = (await identityOf(model))?.digest.sidecar, { digest: _, ...rest } = options;
  return cached(url, rest, sidecar === undefined ? null : { key: sidecar, digest: { sidecar } });
}

async function cached(url: URL, options: LoadOptions, promised: Identity | null): Promise<Blob> {
  if (options.cache === false || typeof caches === "undefined") return download(url, options);
  const store = await Store.open();
  if (options.digest !== undefined) {
    const kept = await store.complete(await store.lookUp(`digest/${options.digest}`));
    if (kept) return kept;
  }
  const head = await ask(url, options.signal);
  if (head === "offline") {
    const kept = await store.complete(await store.lookUp(`url/${encodeURIComponent(url.href)}`));
    if (kept) return kept;
    throw new DownloadError(`cannot reach ${url}, and it is not in the cache`, "check the network");
  }
  const identity = head.size > 0 ? (promised ?? (await identityAt(url, head.size, options.signal))) : null;
  return identity ? fetchParts(url, head.size, identity, store, options) : fetchWhole(url, store, options, promised);
}

/** How large the file is (0: unknown), or that nobody answers. */
async function ask(url: URL, signal: AbortSignal | undefined): Promise<{ size: number } | "offline"> {
  try {
    const response = await fetch(url, { method: "HEAD", cache: "no-cache", ...(signal ? { signal } : {}) });
    const exact = response.ok && !response.headers.get("content-encoding");
    return { size: exact ? Number(response.headers.get("content-length") ?? 0) : 0 };
  } catch {
    signal?.throwIfAborted();
    return "offline";
  }
}

/** Read the digest at the end of the file; null where the server gives no parts, or there is none. */
async function identityAt(url: URL, size: number, signal: AbortSignal | undefined): Promise<Identity | null> {
  const range = { range: `bytes=${Math.max(0, size - TAIL)}-${size - 1}` };
  const response = await fetch(url, { headers: range, cache: "no-cache", ...(signal ? { signal } : {}) }).catch(() => null);
  signal?.throwIfAborted();
  if (response?.status !== 206) {
    void response?.body?.cancel();
    return null;
  }
  return identityIn(new Uint8Array(await response.arrayBuffer()));
}

async function identityOf(model: Blob): Promise<Identity | null> {
  return identityIn(new Uint8Array(await model.slice(Math.max(0, model.size - TAIL)).arrayBuffer()));
}

/** The digest entry in the last bytes of a file: a metadata entry, key and value with their lengths. */
async function identityIn(tail: Uint8Array): Promise<Identity | null> {
  const text = new TextDecoder("latin1").decode(tail), at = text.lastIndexOf(`\n${String.fromCharCode(DIGEST_KEY.length)}${DIGEST_KEY}\u0012`);
  if (at < 0) return null;
  let start = at + DIGEST_KEY.length + 3, length = 0;
  for (let shift = 0; ; shift += 7) {
    const byte = tail[start++];
    if (byte === undefined) return null;
    length += (byte & 127) * 2 ** shift;
    if (byte < 128) break;
  }
  const entry = tail.slice(start, start + length);
  try {
    const digest = JSON.parse(new TextDecoder().decode(entry)) as Record<string, string>;
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", entry));
    return { digest, key: [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("") };
  } catch {
    return null;
  }
}

async function fetchParts(url: URL, size: number, identity: Identity, store: Store, options: LoadOptions): Promise<Blob> {
  const entry: Entry = { ...identity, size, complete: false };
  const kept = await store.complete(identity.key);
  if (kept) {
    await store.point(url, entry);
    return kept;
  }
  const parts: Blob[] = [];
  let loaded = 0;
  for (let start = 0; start < size; start += PART) {
    const end = Math.min(start + PART, size);
    let part = await store.part(identity.key, parts.length, end - start);
    if (!part) {
      const before = loaded;
      const onProgress: LoadOptions["onProgress"] = (progress) => options.onProgress?.({ ...progress, loaded: before + progress.loaded, total: size });
      part = await download(url, { onProgress, ...(options.signal ? { signal: options.signal } : {}) }, [start, end]);
      part = (await store.put(identity.key, parts.length, part)) ?? part;
    }
    parts.push(part);
    loaded += end - start;
    options.onProgress?.({ stage: "download", loaded, total: size });
  }
  const blob = new Blob(parts);
  await checkBytes(url, blob, entry, store);
  return blob;
}

async function fetchWhole(url: URL, store: Store, options: LoadOptions, promised: Identity | null): Promise<Blob> {
  const blob = await download(url, options);
  const identity = promised ?? (await identityOf(blob));
  if (!identity) return blob; // no file of edgelm, or damaged: opening it says so
  for (let start = 0; start < blob.size; start += PART) await store.put(identity.key, start / PART, blob.slice(start, start + PART));
  await checkBytes(url, blob, { ...identity, size: blob.size, complete: false }, store);
  return blob;
}

/** Hold what was downloaded against the digest that it carries. */
async function checkBytes(url: URL, blob: Blob, entry: Entry, store: Store): Promise<void> {
  let found: Record<string, string> = {};
  try {
    const source = blobSource(blob, url.href);
    found = entry.digest.graph ? await fileDigest(source, null) : { sidecar: await bytesDigest(source) };
  } catch (error) {
    await store.forget(entry.key);
    throw error;
  }
  const differs = Object.keys(found).find((part) => found[part] !== entry.digest[part]);
  if (differs === undefined) return store.point(url, { ...entry, complete: true });
  await store.forget(entry.key);
  throw new ModelFileError(`${url} is damaged: its ${differs} is not what the file says`, "download it again, or export it again");
}

/** The cache by names of ours. What cannot be stored is not: a full disk must not keep a model from running. */
class Store {
  private constructor(private readonly cache: Cache) {}

  static async open(): Promise<Store> {
    return new Store(await caches.open(CACHE));
  }

  /** What a name of ours points to. */
  async lookUp(name: string): Promise<string | null> {
    return (await (await this.cache.match(PLACE + name))?.text()) ?? null;
  }

  /** All bytes of the model `key`, where all are there. */
  async complete(key: string | null): Promise<Blob | null> {
    const entry = key && (await this.lookUp(`model/${key}`));
    if (!key || !entry) return null;
    const { size } = JSON.parse(entry) as Entry, parts: Blob[] = [];
    for (let start = 0; start < size; start += PART) {
      const part = await this.part(key, parts.length, Math.min(PART, size - start));
      if (!part) return null;
      parts.push(part);
    }
    return new Blob(parts);
  }

  async part(key: string, index: number, size: number): Promise<Blob | null> {
    const blob = await (await this.cache.match(`${PLACE}part/${key}/${index}`))?.blob();
    return blob?.size === size ? blob : null;
  }

  /** Keep a part; gives it as the browser keeps it, outside of memory. */
  async put(key: string, index: number, part: Blob): Promise<Blob | null> {
    try {
      await this.cache.put(`${PLACE}part/${key}/${index}`, new Response(part));
    } catch {
      return null;
    }
    return this.part(key, index, part.size);
  }

  /** Remember where a complete model came from; one that was there before is forgotten, unless it is had elsewhere too. */
  async point(url: URL, entry: Entry): Promise<void> {
    const name = `url/${encodeURIComponent(url.href)}`, before = await this.lookUp(name);
    const write = (at: string, text: string): Promise<void> => this.cache.put(PLACE + at, new Response(text));
    try {
      if (entry.complete) await write(`model/${entry.key}`, JSON.stringify(entry));
      await write(name, entry.key);
      if (entry.digest.graph) await write(`digest/${entry.digest.graph}`, entry.key);
    } catch {
      return;
    }
    if (before && before !== entry.key && !(await this.pointsTo(before))) await this.forget(before);
  }

  async forget(key: string): Promise<void> {
    const ours = (await this.cache.keys()).filter(({ url }) => url.startsWith(`${PLACE}part/${key}/`) || url === `${PLACE}model/${key}`);
    await Promise.all(ours.map((request) => this.cache.delete(request)));
  }

  private async pointsTo(key: string): Promise<boolean> {
    const names = (await this.cache.keys()).filter(({ url }) => url.startsWith(`${PLACE}url/`));
    for (const name of names) if ((await (await this.cache.match(name))?.text()) === key) return true;
    return false;
  }
}
