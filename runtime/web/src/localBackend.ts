/** A model that runs in this thread. */
import type { Backend, ModelInfo, Pieces, Prompt, Request } from "./backend.js";
import { pooled, type EmbedOptions } from "./embedding.js";
import { Engine } from "./engine/engine.js";
import { ClosedError, ModelFileError, OptionError } from "./errors.js";
import { makeConstraint } from "./generation/constraint.js";
import type { Decoder } from "./generation/decoder.js";
import { run } from "./generation/loop.js";
import { checkLimits, checkSampling, defaultsFromFile, known } from "./generation/options.js";
import { newStats, type Piece, type Stats } from "./generation/results.js";
import { Sampler } from "./generation/sampler.js";
import { Sequence } from "./generation/sequence.js";
import type { ModelFile } from "./modelFile/metadata.js";
import type { Source } from "./modelFile/source.js";
import { verifyModel, type VerifyReport } from "./reports/verify.js";
import { makeScore, scoreIds, type Score, type ScoreOptions } from "./scoring.js";
import type { ChatText } from "./text/chatTemplate.js";
import type { AllowedSpecial, Tokenizer } from "./text/tokenizer.js";
import { checkIds, oneOf, whole } from "./validation.js";

/** A decoder that can be closed. */
export interface OpenDecoder extends Decoder {
  close(): void;
}

export class LocalBackend implements Backend {
  readonly info: ModelInfo;
  private turn: Promise<void> = Promise.resolve();
  private closed = false;

  constructor(
    private readonly file: ModelFile, private readonly decoder: OpenDecoder, private readonly source: Source,
    private readonly sidecar: Source | null, threads: number,
  ) {
    this.info = {
      config: file.config, contextLength: file.config.context_length, vocabSize: file.config.vocab_size, generation: file.generation,
      special: file.tokenizer ? { ...file.tokenizer.special } : null, prefixSpace: file.tokenizer?.prefixSpace ?? "never",
      digest: file.digest.graph ?? "", threads,
    };
  }

  async encode(text: string, allowedSpecial: AllowedSpecial): Promise<number[]> {
    return this.tokenizer.encode(text, allowedSpecial);
  }

  async encodePrompt(prompt: Prompt): Promise<number[]> {
    return [...this.prompt(prompt)];
  }

  async encodeChat({ text, special, standIns }: ChatText): Promise<number[]> {
    if (special) return this.tokenizer.encode(text, "all", standIns); // a template says itself where the begin token goes
    const bos = this.bos, ids = this.tokenizer.encode(text);
    return bos === undefined ? ids : [bos, ...ids];
  }

  async decode(ids: readonly number[], skipSpecial: boolean): Promise<string> {
    return this.tokenizer.decode(ids, skipSpecial);
  }

  async generate({ prompts, n, options }: Request, signal: AbortSignal | undefined): Promise<Pieces> {
    this.open();
    whole("n", n, 1);
    if (!prompts.length) throw new OptionError("there is no prompt", "give at least one");
    const all = { ...defaultsFromFile(this.file.generation), ...known(options) };
    const { vocab_size: vocab } = this.file.config, { endIds, tokenizer } = this.file;
    const sampling = checkSampling(all, vocab), { reference, ...rest } = all;
    const referenceIds = typeof reference === "string" ? this.tokenizer.encode(reference) : reference;
    const limits = checkLimits(referenceIds?.length ? { ...rest, reference: checkIds(referenceIds, vocab, "reference") } : rest);
    const constraint = makeConstraint(all, tokenizer, vocab, endIds);
    const sequences = prompts.map((prompt) => this.prompt(prompt, all.allowedSpecial)).flatMap((ids, index) =>
      Array.from({ length: n }, (_, sample) =>
        new Sequence(ids, new Sampler(sampling, sample, constraint?.start() ?? null), limits, endIds, tokenizer, index * n + sample)),
    );
    const stats = newStats();
    return this.inTurn(run(this.decoder, sequences, limits, stats, () => signal?.aborted || this.closed, breathe), stats);
  }

  async score(text: Prompt, options: ScoreOptions): Promise<Score> {
    const ids = this.prompt(text);
    const scored = await this.alone(() => scoreIds(this.decoder, ids, options, breathe));
    return makeScore(ids, scored, this.file.tokenizer?.decodeBytes(ids.subarray(1), true).length ?? 0, options.topLogprobs !== undefined);
  }

  async embed(texts: readonly Prompt[], { layer = "hidden", pooling = "mean", normalize = true, prefix = "" }: EmbedOptions): Promise<Float32Array[][]> {
    oneOf("layer", layer, ["hidden", "embeddings"]);
    oneOf("pooling", pooling, ["mean", "last", "none"]);
    const { decoder } = this;
    if (!this.file.outputs.has(layer)) throw new ModelFileError(`this model file has no output "${layer}"`, `export it with --outputs ${layer}`);
    if (!(decoder instanceof Engine)) throw new OptionError("embed needs edgelm's own engine", "load without onnxruntime");
    if (!texts.length) throw new OptionError("there is no text", "give at least one");
    const rows = texts.map((text) => this.whole(text, prefix));
    return this.alone(async () => {
      const found: Float32Array[][] = [];
      for (const ids of rows) {
        await breathe();
        found.push(pooled(await decoder.states(ids, layer), pooling, normalize));
      }
      return found;
    });
  }

  async logits(ids: readonly number[]): Promise<Float32Array[]> {
    const checked = checkIds(ids, this.info.vocabSize);
    if (checked.length > this.info.contextLength) throw new OptionError(`${ids.length} token ids exceed the context of ${this.info.contextLength}`, "give fewer");
    return this.alone(() => this.decoder.logits(checked, checked.length));
  }

  async verify(): Promise<VerifyReport> {
    return this.alone(() => verifyModel(this.source, this.sidecar, this.file, this.decoder));
  }

  async memoryBytes(): Promise<number> {
    return this.decoder instanceof Engine ? this.decoder.memoryBytes : 0;
  }

  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    await this.turn.catch(() => {});
    this.decoder.close();
    await Promise.all([this.source.close(), this.sidecar?.close()]);
  }

  private get tokenizer(): Tokenizer {
    this.open();
    if (!this.file.tokenizer) throw new OptionError("this model has no tokenizer", "give token ids, or export it with --tokenizer");
    return this.file.tokenizer;
  }

  private get bos(): number | undefined {
    return this.file.generation.add_bos ? this.file.generation.bos_id : undefined;
  }

  /**
   * Token ids as the model wants to see them, at least one. Text gets the begin token where the model has one; an
   * empty text becomes that token, or end-of-text.
   */
  private prompt(prompt: Prompt, allowedSpecial: AllowedSpecial = []): Int32Array {
    if (typeof prompt !== "string") return checkIds(prompt, this.info.vocabSize);
    const bos = this.bos, ids = this.tokenizer.encode(prompt, allowedSpecial);
    if (bos !== undefined) ids.unshift(bos);
    const start = this.file.generation.bos_id ?? this.tokenizer.endOfText;
    if (!ids.length && start === undefined) throw new OptionError("the prompt is empty and this model has no begin token", "give some text");
    return Int32Array.from(ids.length ? ids : [start!]);
  }

  /** Token ids of a text that is not to be continued: `prefix`, the text, and the token that the tokenizer puts after a text. */
  private whole(text: Prompt, prefix: string): Int32Array {
    const { contextLength: context, generation } = this.info;
    if (typeof text !== "string") {
      if (prefix) throw new OptionError("prefix is given, and token ids", "give texts, or leave the prefix out");
      return this.prompt(text).slice(0, context);
    }
    const end = generation.add_eos && generation.eos_id !== undefined ? [generation.eos_id] : [];
    const ids = this.prompt(prefix + text).subarray(0, Math.max(1, context - end.length));
    return Int32Array.from([...ids, ...end]).slice(0, context);
  }

  private open(): void {
    if (this.closed) throw new ClosedError("the model is closed", "load it again");
  }

  /** One call at a time has the engine; others wait. */
  private async alone<T>(work: () => Promise<T>): Promise<T> {
    this.open();
    const done = await this.wait();
    try {
      this.open();
      return await work();
    } finally {
      done();
    }
  }

  private async *inTurn(pieces: AsyncGenerator<Piece>, stats: Stats): Pieces {
    const done = await this.wait();
    try {
      this.open();
      for await (const piece of pieces) yield [piece, stats];
    } finally {
      done();
    }
  }

  private async wait(): Promise<() => void> {
    const before = this.turn;
    let done = (): void => {};
    this.turn = new Promise((resolve) => (done = resolve));
    await before;
    return done;
  }
}

const channel = typeof setImmediate === "undefined" ? new MessageChannel() : null;
const waiting: (() => void)[] = [];
if (channel) channel.port1.onmessage = () => waiting.shift()?.();

/** Let messages and timers of this thread have their turn. */
export function breathe(): Promise<void> {
  return new Promise((resolve) => {
    if (!channel) return void setImmediate(resolve);
    waiting.push(resolve);
    channel.port2.postMessage(0);
  });
}
