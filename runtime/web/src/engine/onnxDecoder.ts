/** A decoder that runs the graph itself, by onnxruntime (onnxruntime-web or onnxruntime-node), over whole windows. */
import { OptionError } from "../errors.js";
import type { Decoder } from "../generation/decoder.js";
import type { ModelFile } from "../modelFile/metadata.js";
import { Reader } from "../modelFile/protobuf.js";
import type { Source } from "../modelFile/source.js";

interface OnnxTensor {
  data: unknown;
  dims: readonly number[];
}

interface OnnxSession {
  readonly inputNames: readonly string[];
  readonly inputMetadata?: readonly { name: string; type?: string; shape?: readonly (number | string)[] }[];
  run(feeds: Record<string, OnnxTensor>, outputs: readonly string[]): Promise<Record<string, OnnxTensor>>;
  release(): Promise<void>;
}

/** The parts of onnxruntime's module that are used. */
export interface OnnxRuntime {
  InferenceSession: { create(bytes: Uint8Array, options?: object): Promise<OnnxSession> };
  // Its constructor takes what the type asks for.
  Tensor: new (type: never, data: never, dims: readonly number[]) => OnnxTensor;
}

const GRAPH = 7, INITIALIZER = 5, NAME = 8, NOBODY_READS = 3;
const WIDTHS: Record<string, [string, (size: number) => ArrayBufferView]> = {
  int8: ["int8", (size) => new Int8Array(size)], float16: ["float16", (size) => new Uint16Array(size)], float32: ["float32", (size) => new Float32Array(size)],
};

export class OnnxDecoder implements Decoder {
  readonly passCost = 4;

  private constructor(
    private readonly ort: OnnxRuntime, private readonly session: OnnxSession, readonly contextLength: number, readonly vocabSize: number,
  ) {}

  static async open(ort: OnnxRuntime, source: Source, { config }: ModelFile): Promise<OnnxDecoder> {
    if (typeof ort?.InferenceSession?.create !== "function") throw new OptionError("onnxruntime is not its module", 'give `import * as onnxruntime from "onnxruntime-web"`');
    const bytes = new Uint8Array(await source.read(0, source.size)).slice();
    await requireInput(bytes, source, "logits_at");
    return new OnnxDecoder(ort, await ort.InferenceSession.create(bytes), config.context_length, config.vocab_size);
  }

  async logits(ids: Int32Array, count: number): Promise<Float32Array[]> {
    const at = BigInt64Array.from({ length: count }, (_, i) => BigInt(i - count));
    const feeds: Record<string, OnnxTensor> = {
      input_ids: this.tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]),
      logits_at: this.tensor("int64", at, [1, count]),
    };
    if (this.session.inputNames.includes("cache_length")) {
      feeds.cache_length = this.tensor("int64", new BigInt64Array(1), [1]);
      for (const { name, type = "float32", shape = [] } of this.session.inputMetadata ?? []) {
        if (!name.startsWith("past_key_values.")) continue;
        const [kind, make] = WIDTHS[type] ?? WIDTHS.float32!, room = shape.includes("capacity") ? ids.length : 0;
        const dims = [1, Number(shape[1]), room, Number(shape[3])];
        feeds[name] = this.tensor(kind, make(dims.reduce((a, b) => a * b, 1)), dims);
      }
    }
    const { logits } = await this.session.run(feeds, ["logits"]), data = logits!.data as Float32Array;
    return Array.from({ length: count }, (_, row) => data.slice(row * this.vocabSize, (row + 1) * this.vocabSize));
  }

  close(): void {
    void this.session.release();
  }

  private tensor(type: string, data: ArrayBufferView, dims: number[]): OnnxTensor {
    return new this.ort.Tensor(type as never, data as never, dims);
  }
}

/**
 * Make an input with a default a plain input: onnxruntime-web refuses to be fed one, and onnxruntime-node ignores
 * it. The initializer's field gets a number that nobody reads.
 */
async function requireInput(bytes: Uint8Array, source: Source, name: string): Promise<void> {
  const reader = new Reader(source);
  for await (const graph of reader.walk(0, source.size)) {
    if (graph.number !== GRAPH) continue;
    for await (const field of reader.walk(graph.content, graph.end)) {
      if (field.number !== INITIALIZER) continue;
      for await (const part of reader.walk(field.content, field.end)) {
        if (part.number === NAME && (await reader.text(part)) === name) bytes[field.start] = (NOBODY_READS << 3) | 2;
      }
    }
  }
}
