/** The WebAssembly kernels, and the memory that they work in. */
import { ModelFileError } from "../errors.js";
import { KERNELS, PLAIN } from "./kernels.generated.js";

type Fn = (...values: number[]) => void;

/** What `kernels/index.ts` exports. */
export interface Kernels {
  activate: Fn; add: Fn; addBias: Fn; layerNorm: Fn; rmsNorm: Fn; rotate: Fn; softcap: Fn; withMeans: Fn;
  roundRows: Fn; byColumns: Fn; byRows: Fn; int8Rows: Fn; int8Blocks: Fn; int4Blocks: Fn; attend: Fn;
  halfToFloat: Fn; orderLanes: Fn; padRows8: Fn; pairNibbles: Fn; rowSums: Fn; transpose8: Fn; unpackNibbles: Fn; unpackZeros: Fn;
  sha256: Fn; setThreads: Fn; help: Fn; dismiss: Fn;
  usable(): number;
}

/** The kernels on some memory, and the module that they are of. */
export interface OpenKernels {
  kernels: Kernels;
  module: WebAssembly.Module;
  /** Whether they use relaxed SIMD; bytes of blocks then lie in another order (LANES). */
  relaxed: boolean;
}

/** Byte i of 16 lies at LANES[i] where kernels use relaxed SIMD (`lanes` in kernels/relaxed.ts). */
export const LANES = [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15];

const PAGE = 65536;
const MOST_PAGES = 65536;
/** What the kernels keep for themselves lies below. */
const FIRST_FREE = 4096;
const ALIGNMENT = 64;
/** Pages that are added at least: each time costs a collection of garbage, since engines count the memory anew. */
const STEP = 256;

let modules: Promise<Uint8Array<ArrayBuffer>> | null = null;
const compiled = new Map<string, Promise<WebAssembly.Module>>();

/** The kernels as a module: with relaxed SIMD or not, for memory that is shared among threads or not. */
function kernelModule(relaxed: boolean, shared: boolean): Promise<WebAssembly.Module> {
  const key = `${relaxed} ${shared}`;
  let found = compiled.get(key);
  if (!found) compiled.set(key, (found = compile(relaxed, shared)));
  return found;
}

async function compile(relaxed: boolean, shared: boolean): Promise<WebAssembly.Module> {
  const both = await (modules ??= inflated()), bytes = relaxed ? both.slice(PLAIN) : both.slice(0, PLAIN);
  return WebAssembly.compile(shared ? bytes : unshared(bytes));
}

async function inflated(): Promise<Uint8Array<ArrayBuffer>> {
  const packed = new Blob([Uint8Array.from(atob(KERNELS), (c) => c.charCodeAt(0))]);
  const reader = packed.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader(), parts: BlobPart[] = [];
  for (let next = await reader.read(); !next.done; next = await reader.read()) parts.push(next.value);
  return new Uint8Array(await new Blob(parts).arrayBuffer()); // a Response would do, and costs Node 30 ms
}

/**
 * The same module with an import of memory that is not shared. The limits of an imported memory begin with flags:
 * 3 is shared with a maximum, 1 not shared. Atomic operations work on both.
 */
function unshared(bytes: Uint8Array<ArrayBuffer>): Uint8Array<ArrayBuffer> {
  const name = new TextEncoder().encode("\u0003env\u0006memory\u0002\u0003");
  const at = bytes.findIndex((_, i) => name.every((byte, j) => bytes[i + j] === byte));
  bytes[at + name.length - 1] = 1;
  return bytes;
}

/** Memory of the kernels: allocated from bottom to top, and given back as a whole. */
export class Heap {
  readonly memory: WebAssembly.Memory;
  private top = FIRST_FREE;
  private bytes: Uint8Array<ArrayBufferLike>;
  private floats: Float32Array<ArrayBufferLike>;

  constructor(shared: boolean) {
    this.memory = new WebAssembly.Memory({ initial: 1, maximum: MOST_PAGES, shared });
    this.bytes = new Uint8Array(this.memory.buffer);
    this.floats = new Float32Array(this.memory.buffer);
  }

  /** Address of `size` new bytes. Throws ModelFileError where there is not so much memory. */
  allocate(size: number): number {
    const start = this.top, end = start + Math.ceil(size / ALIGNMENT) * ALIGNMENT;
    this.reserve(end);
    this.top = end;
    return start;
  }

  /** Have memory up to address `end`, so that it need not grow often. */
  reserve(end: number): void {
    const held = this.memory.buffer.byteLength / PAGE, wanted = Math.ceil(end / PAGE);
    if (wanted <= held) return;
    try {
      this.memory.grow(Math.min(Math.max(wanted, held + STEP), MOST_PAGES) - held);
    } catch {
      throw new ModelFileError(`there is no memory for ${(end / 1e6).toFixed(0)} MB`, "use a smaller model, or quantise it");
    }
  }

  /** All of the memory. Fetch it anew after each `allocate`. */
  get u8(): Uint8Array {
    if (this.bytes.byteLength !== this.memory.buffer.byteLength) this.bytes = new Uint8Array(this.memory.buffer);
    return this.bytes;
  }

  get i8(): Int8Array {
    return new Int8Array(this.memory.buffer);
  }

  get u32(): Uint32Array {
    return new Uint32Array(this.memory.buffer);
  }

  /** All of the memory as float32: address / 4. */
  get f32(): Float32Array {
    if (this.floats.byteLength !== this.memory.buffer.byteLength) this.floats = new Float32Array(this.memory.buffer);
    return this.floats;
  }

  /** Bytes in use. */
  get size(): number {
    return this.memory.buffer.byteLength;
  }
}

/** Kernels on `heap`: the fastest that this machine computes exactly. */
export async function openKernels(heap: Heap, shared: boolean): Promise<OpenKernels> {
  for (const relaxed of [true, false]) {
    try {
      const module = await kernelModule(relaxed, shared);
      const { exports } = await WebAssembly.instantiate(module, { env: { memory: heap.memory } });
      const kernels = exports as unknown as Kernels;
      if (kernels.usable()) return { kernels, module, relaxed };
    } catch (error) {
      if (!(error instanceof WebAssembly.CompileError)) throw error;
    }
  }
  throw new ModelFileError("this browser cannot run WebAssembly with SIMD", "use Chrome or Edge 103, Firefox 113, Safari 16.4, Node 20 or later");
}
