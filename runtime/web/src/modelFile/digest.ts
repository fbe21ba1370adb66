/** What a model file's bytes add up to: a SHA-256 for the graph, for a sidecar, and for each `edgelm.*` entry. */
import { Heap, openKernels, type Kernels } from "../engine/kernels.js";
import { Reader } from "./protobuf.js";
import type { Source } from "./source.js";

const METADATA = 14;
const PREFIX = "edgelm.";
const DIGEST_KEY = "edgelm.digest";
const CHUNK = 1 << 22;

/** SHA-256 (hex) by the names that `edgelm.digest` uses. Throws ModelFileError where the file is cut off. */
export async function fileDigest(source: Source, sidecar: Source | null): Promise<Record<string, string>> {
  const hasher = await Hasher.open(), reader = new Reader(source), found: Record<string, string> = {};
  const graph: [number, number][] = [];
  for await (const field of reader.walk(0, source.size)) {
    if (field.number !== METADATA) {
      graph.push([field.start, field.end]);
      continue;
    }
    let key = "", value: [number, number] = [0, 0];
    for await (const part of reader.walk(field.content, field.end)) {
      if (part.number === 1) key = await reader.text(part);
      else if (part.number === 2) value = [part.content, part.end];
    }
    if (key.startsWith(PREFIX) && key !== DIGEST_KEY) found[key] = await hasher.hex(source, [value]);
  }
  found.graph = await hasher.hex(source, graph);
  if (sidecar) found.sidecar = await hasher.hex(sidecar, [[0, sidecar.size]]);
  return found;
}

/** SHA-256 (hex) of all bytes. */
export async function bytesDigest(source: Source): Promise<string> {
  return (await Hasher.open()).hex(source, [[0, source.size]]);
}

/** SHA-256 by the kernels, in pieces. */
class Hasher {
  private readonly state: number;
  private readonly data: number;

  private constructor(
    private readonly heap: Heap, private readonly kernels: Kernels,
  ) {
    this.state = heap.allocate(32);
    this.data = heap.allocate(CHUNK + 128);
  }

  static async open(): Promise<Hasher> {
    const heap = new Heap(false);
    return new Hasher(heap, (await openKernels(heap, false)).kernels);
  }

  /** The hash of some stretches of `source`, one after the other. */
  async hex(source: Source, stretches: readonly [number, number][]): Promise<string> {
    const { heap, kernels, state, data } = this;
    heap.u32.set([0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19], state / 4);
    let held = 0, total = 0;
    for (const [start, end] of stretches) {
      for (let at = start; at < end; at += CHUNK - 64) {
        const bytes = await source.read(at, Math.min(at + CHUNK - 64, end));
        heap.u8.set(bytes, data + held);
        held += bytes.length;
        total += bytes.length;
        kernels.sha256(state, data, held >> 6);
        heap.u8.copyWithin(data, data + (held & ~63), data + held);
        held &= 63;
      }
    }
    const padded = held < 56 ? 64 : 128, view = new DataView(heap.memory.buffer, data);
    heap.u8.fill(0, data + held, data + padded);
    view.setUint8(held, 0x80);
    view.setBigUint64(padded - 8, BigInt(total) * 8n);
    kernels.sha256(state, data, padded >> 6);
    return [...heap.u32.subarray(state / 4, state / 4 + 8)].map((word) => word.toString(16).padStart(8, "0")).join("");
  }
}
