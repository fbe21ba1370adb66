/**
 * Protobuf messages as fields and where they lie, read in part: enough to walk a model file without holding it.
 *
 * https://protobuf.dev/programming-guides/encoding/; field numbers from onnx.proto.
 */
import { ModelFileError } from "../errors.js";
import type { Source } from "./source.js";

/** Number of a field, and offsets: of the field, of its content, and of what follows. `value` of a varint. */
export interface Field {
  number: number;
  start: number;
  content: number;
  end: number;
  value: number;
}

const WINDOW = 1 << 16;

/** Reads a Source through a window, since fields are small and many. */
export class Reader {
  private window: Uint8Array = new Uint8Array(0);
  private offset = 0;

  constructor(private readonly source: Source) {}

  /** The fields of the message that lies from `start` to `end`, in order. Throws ModelFileError, with what is wrong. */
  async *walk(start: number, end: number): AsyncGenerator<Field> {
    while (start < end) {
      await this.bring(start, Math.min(start + 20, end));
      const [tag, afterTag] = this.varint(start, end);
      const kind = tag & 7;
      let content = afterTag, next: number, value = 0;
      if (kind === 2) {
        [value, content] = this.varint(afterTag, end);
        next = content + value;
      } else if (kind === 0) [value, next] = this.varint(afterTag, end);
      else if (kind === 1) next = afterTag + 8;
      else if (kind === 5) next = afterTag + 4;
      else throw this.damaged("is not an ONNX model");
      if (next > end) throw this.damaged("is cut off");
      yield { number: Math.floor(tag / 8), start, content, end: next, value };
      start = next;
    }
  }

  /** The content of a field. */
  async content(field: Field): Promise<Uint8Array> {
    return this.bytes(field.content, field.end);
  }

  async bytes(start: number, end: number): Promise<Uint8Array> {
    if (end - start > WINDOW) return this.source.read(start, end);
    await this.bring(start, end);
    return this.window.subarray(start - this.offset, end - this.offset);
  }

  async text(field: Field): Promise<string> {
    return new TextDecoder().decode(await this.content(field));
  }

  private async bring(start: number, end: number): Promise<void> {
    if (start >= this.offset && end <= this.offset + this.window.length) return;
    this.window = await this.source.read(start, Math.min(start + WINDOW, this.source.size));
    this.offset = start;
    if (this.window.length < end - start) throw this.damaged("is cut off");
  }

  private varint(at: number, end: number): [number, number] {
    let value = 0, factor = 1;
    for (let i = at; i < Math.min(at + 10, end); i++) {
      const byte = this.window[i - this.offset] ?? 0;
      value += (byte & 127) * factor;
      if (byte < 128) return [value, i + 1];
      factor *= 128;
    }
    throw this.damaged(end < at + 10 ? "is cut off" : "is not an ONNX model");
  }

  private damaged(what: string): ModelFileError {
    return new ModelFileError(`${this.source.name} ${what}`, "copy, download or export it again");
  }
}

/** Numbers packed as varints. */
export function packedVarints(bytes: Uint8Array): number[] {
  const found: number[] = [];
  let value = 0, factor = 1;
  for (const byte of bytes) {
    value += (byte & 127) * factor;
    factor *= 128;
    if (byte < 128) {
      found.push(value);
      value = 0;
      factor = 1;
    }
  }
  return found;
}
