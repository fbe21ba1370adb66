/** What lies where in an ONNX file: metadata, inputs and outputs, weights. The weights themselves stay where they are. */
import { ModelFileError } from "../errors.js";
import { packedVarints, Reader, type Field } from "./protobuf.js";
import type { Source } from "./source.js";

// ModelProto, GraphProto, TensorProto, ValueInfoProto
const GRAPH = 7, METADATA = 14;
const INITIALIZER = 5, INPUT = 11, OUTPUT = 12;
const DIMS = 1, DATA_TYPE = 2, NAME = 8, RAW_DATA = 9, EXTERNAL_DATA = 13;

/** ONNX's numbers for element types, those that occur in weights. */
export const FLOAT = 1, UINT8 = 2, INT8 = 3, INT64 = 7, FLOAT16 = 10;

/** A weight: its shape, ONNX's number of its element type, and where its bytes lie. */
export interface Tensor {
  name: string;
  dims: number[];
  type: number;
  start: number;
  end: number;
  /** Where the bytes lie in the sidecar, and not in the file. */
  external: boolean;
}

export interface Layout {
  metadata: Map<string, string>;
  inputs: Set<string>;
  outputs: Set<string>;
  tensors: Map<string, Tensor>;
}

/** Walk the file. Throws ModelFileError where it is cut off or no ONNX model. */
export async function readLayout(source: Source): Promise<Layout> {
  const reader = new Reader(source);
  const layout: Layout = { metadata: new Map(), inputs: new Set(), outputs: new Set(), tensors: new Map() };
  if (!source.size) throw new ModelFileError(`${source.name} is empty`, "copy, download or export it again");
  let graphs = 0;
  for await (const field of reader.walk(0, source.size)) {
    if (field.number === METADATA) layout.metadata.set(...(await entry(reader, field)));
    else if (field.number === GRAPH) {
      graphs++;
      await readGraph(reader, field, layout);
    }
  }
  if (!graphs) throw new ModelFileError(`${source.name} is not an ONNX model`, "copy, download or export it again");
  return layout;
}

async function readGraph(reader: Reader, graph: Field, layout: Layout): Promise<void> {
  for await (const field of reader.walk(graph.content, graph.end)) {
    if (field.number === INITIALIZER) {
      const tensor = await readTensor(reader, field);
      layout.tensors.set(tensor.name, tensor);
    } else if (field.number === INPUT || field.number === OUTPUT) {
      for await (const part of reader.walk(field.content, field.end)) {
        if (part.number === 1) (field.number === INPUT ? layout.inputs : layout.outputs).add(await reader.text(part));
      }
    }
  }
}

async function readTensor(reader: Reader, field: Field): Promise<Tensor> {
  const tensor: Tensor = { name: "", dims: [], type: 0, start: 0, end: 0, external: false };
  const external = new Map<string, string>();
  for await (const part of reader.walk(field.content, field.end)) {
    if (part.number === DIMS) {
      // Packed, or one number each.
      if (part.content > part.start + 1) tensor.dims.push(...packedVarints(await reader.content(part)));
      else tensor.dims.push(part.value);
    } else if (part.number === DATA_TYPE) tensor.type = part.value;
    else if (part.number === NAME) tensor.name = await reader.text(part);
    else if (part.number === RAW_DATA) [tensor.start, tensor.end] = [part.content, part.end];
    else if (part.number === EXTERNAL_DATA) external.set(...(await entry(reader, part)));
  }
  if (external.size) {
    tensor.external = true;
    tensor.start = Number(external.get("offset") ?? 0);
    tensor.end = tensor.start + Number(external.get("length") ?? 0);
  }
  return tensor;
}

/** Key and value of a StringStringEntryProto: fields 1 and 2. */
async function entry(reader: Reader, field: Field): Promise<[string, string]> {
  const found: [string, string] = ["", ""];
  for await (const part of reader.walk(field.content, field.end)) {
    if (part.number === 1 || part.number === 2) found[part.number - 1] = await reader.text(part);
  }
  return found;
}
