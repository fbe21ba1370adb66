/**
 * Does a model file still give the results that it was exported with, in this engine?
 *
 * Two questions: are its bytes those that were written, and does this engine compute what the golden vectors say?
 * `atol` is what a logit may be off where the arithmetic is that of the export. This engine adds in another order. In
 * float32 that is far below `atol`. Quantised graphs round activations, so a difference in the last digit now and
 * then becomes one of a whole level, and what follows differs by as much as rounding itself: what is asked for there is
 * that errors are below `atol` on the whole (root mean square), and no single one above SINGLE times it.
 */
import { VerificationError } from "../errors.js";
import type { Decoder } from "../generation/decoder.js";
import { logSumExp } from "../generation/logprobs.js";
import { fileDigest } from "../modelFile/digest.js";
import type { GoldenLogits, ModelFile } from "../modelFile/metadata.js";
import type { Source } from "../modelFile/source.js";
import { shown } from "../validation.js";

const DO_NOT_USE = "get the original file again, or export it again";
const SINGLE = 4;
/** A single prompt may be off by so much more on the whole than all together. */
const FEW = 2;
/** Tokens that are replayed at load. */
const AT_LOAD = 2;

/** What was replayed. `nearTies` counts greedy tokens that differ within what logits may be off. */
export interface VerifyReport {
  prompts: number;
  tokens: number;
  maxAbsError: number;
  rmsError: number;
  atol: number;
  nearTies: number;
}

/** Check the bytes of a model and replay its golden vectors. Throws VerificationError where something differs. */
export async function verifyModel(source: Source, sidecar: Source | null, file: ModelFile, decoder: Decoder): Promise<VerifyReport> {
  await checkDigest(source, sidecar, file);
  for (const { text, ids } of file.golden?.prompts ?? []) {
    if (text !== undefined && file.tokenizer?.encode(text).join() !== ids.join()) {
      throw new VerificationError(`the tokenizer of ${source.name} no longer encodes ${shown(text)} as it did`, DO_NOT_USE);
    }
  }
  return replay(source.name, file, decoder);
}

/** Compare the bytes with the digest in the file. */
export async function checkDigest(source: Source, sidecar: Source | null, file: ModelFile): Promise<void> {
  if (!file.digest.graph) throw new VerificationError(`${source.name} carries no digest`, "export it again");
  const found = await fileDigest(source, sidecar);
  for (const part of new Set([...Object.keys(found), ...Object.keys(file.digest)])) {
    if (found[part] === file.digest[part]) continue;
    const what = { graph: "graph or its weights", sidecar: "weights in the sidecar" }[part] ?? part;
    throw new VerificationError(`${source.name} was changed after its export: the ${what}`, DO_NOT_USE);
  }
}

/** Replay the beginning of the shortest golden prompt: does this machine compute what was exported? A file without any passes. */
export async function checkGolden(name: string, file: ModelFile, decoder: Decoder): Promise<void> {
  const { golden } = file, [first] = golden?.prompts.toSorted((a, b) => a.ids.length - b.ids.length) ?? [];
  if (golden && first) await replay(name, { ...file, golden: { ...golden, prompts: [{ ...first, tokens: first.tokens.slice(0, AT_LOAD) }] } }, decoder, FEW);
}

async function replay(name: string, { golden, graph }: ModelFile, decoder: Decoder, whole = 1): Promise<VerifyReport> {
  if (!golden?.prompts.length) throw new VerificationError(`${name} carries no golden vectors`, "export it again");
  const { atol } = golden, quantized = graph.dtype === "int8" || graph.dtype === "int4";
  const most = quantized ? SINGLE * atol : atol, mean = quantized ? whole * atol : atol, errors: number[] = [];
  let nearTies = 0, tokens = 0;
  for (const prompt of golden.prompts) {
    // The whole answer in one pass: attention is causal, so each step sees what it saw when it was made.
    const ids = Int32Array.from([...prompt.ids, ...prompt.tokens.slice(0, -1)]);
    const logits = await decoder.logits(ids, prompt.tokens.length);
    prompt.tokens.forEach((id, step) => {
      const row = logits[step]!, best = row.indexOf(row.reduce((a, b) => Math.max(a, b)));
      errors.push(...differences(row, prompt.logits[step]!));
      if (best === id) return;
      // Both logits of a tie may be off, in opposite directions.
      if (row[best]! - row[id]! > 2 * most) throw new VerificationError(`${name} chooses other tokens than at its export`, DO_NOT_USE);
      nearTies++;
    });
    tokens += prompt.tokens.length;
  }
  const maxAbsError = Math.max(...errors), rmsError = Math.sqrt(errors.reduce((sum, error) => sum + error * error, 0) / errors.length);
  if (!(maxAbsError <= most && rmsError <= mean)) {
    throw new VerificationError(
      `${name} gives other logits than at its export: off by ${maxAbsError.toExponential(2)} (${most.toExponential(2)} allowed), ` +
        `${rmsError.toExponential(2)} on the whole (${mean.toExponential(2)} allowed)`,
      DO_NOT_USE,
    );
  }
  return { prompts: golden.prompts.length, tokens, maxAbsError, rmsError, atol, nearTies };
}

function differences(row: Float32Array, golden: GoldenLogits): number[] {
  return [...golden.ids.map((id, i) => Math.abs(row[id]! - golden.values[i]!)), Math.abs(logSumExp(row) - golden.logsumexp)];
}
