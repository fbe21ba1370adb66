/** The face of the package: generate, stream, chat, score, embed. */
import type { Backend, ModelInfo, Pieces, Prompt } from "./backend.js";
import type { EmbedOptions } from "./embedding.js";
import { OptionError } from "./errors.js";
import type { GenerateOptions } from "./generation/options.js";
import { finished, newStats, type Generation, type Piece, type Stats } from "./generation/results.js";
import type { VerifyReport } from "./reports/verify.js";
import type { Score, ScoreOptions } from "./scoring.js";
import { ChatTemplate, PLAIN_STOP, type FillTemplate, type Message, type TemplateOptions } from "./text/chatTemplate.js";
import type { AllowedSpecial } from "./text/tokenizer.js";

/** Turns text to token ids and back, as the model does. */
export interface AsyncTokenizer {
  encode(text: string, allowedSpecial?: AllowedSpecial): Promise<number[]>;
  decode(ids: readonly number[], skipSpecial?: boolean): Promise<string>;
}

/** Pieces as they are made, and counts that grow along. */
export interface TextStream extends AsyncIterable<Piece> {
  readonly stats: Stats;
  /** Settled once the prompt and the options have been checked; it throws what is wrong with them, as the first piece would. */
  readonly ready: Promise<void>;
}

/** A loaded model. Calls may overlap; they are served one after the other. `close` it when it is no longer needed. */
export class LanguageModel {
  readonly info: ModelInfo;
  readonly tokenizer: AsyncTokenizer;
  private readonly template: ChatTemplate;

  constructor(
    private readonly backend: Backend, fill: FillTemplate, /** Seconds that loading took. */ readonly loadSeconds: number,
  ) {
    this.info = backend.info;
    const { generation, special } = this.info;
    const text = (id: number | undefined): string => Object.keys(special ?? {}).find((name) => special![name] === id) ?? "";
    const variables = { bos_token: text(generation.bos_id), eos_token: text(generation.end_ids?.[0]) };
    this.template = new ChatTemplate(generation.chat_template ?? null, Object.keys(special ?? {}), variables, fill);
    this.tokenizer = {
      encode: (text, allowedSpecial = []) => backend.encode(text, allowedSpecial),
      decode: (ids, skipSpecial = false) => backend.decode(ids, skipSpecial),
    };
  }

  /** Continue a text or token ids; a list of prompts, or `n` above 1, gives a list of results, prompt by prompt. */
  generate(prompt: Prompt, options?: GenerateOptions & { n?: 1 }): Promise<Generation>;
  generate(prompt: Prompt, options: GenerateOptions & { n: number }): Promise<Generation[]>;
  generate(prompts: readonly Prompt[], options?: GenerateOptions & { n?: number }): Promise<Generation[]>;
  async generate(prompt: Prompt | readonly Prompt[], options: GenerateOptions & { n?: number } = {}): Promise<Generation | Generation[]> {
    const { n = 1, ...rest } = options, single = isSingle(prompt), prompts = single ? [prompt] : [...prompt];
    const { pieces, onToken } = await this.start(prompts, n, rest), made: Piece[][] = Array.from({ length: prompts.length * n }, () => []);
    let stats = newStats();
    for await (const [piece, counts] of pieces) {
      made[piece.row]!.push(piece);
      stats = counts;
      onToken?.(piece);
    }
    const results = made.map((row) => finished(row, rest.logprobs, stats));
    return single && n === 1 ? results[0]! : results;
  }

  /** Like `generate` for one prompt, a piece at a time. Leaving the loop ends the work. */
  stream(prompt: Prompt, options: GenerateOptions = {}): TextStream {
    return stream(() => this.start([prompt], 1, options));
  }

  /** The assistant's answer to a conversation. */
  async chat(messages: readonly Message[], options: ChatOptions = {}): Promise<Generation> {
    const [prompt, rest] = this.split(options);
    return this.generate(await this.chatPrompt(messages, prompt), rest);
  }

  /** Like `chat`, a piece at a time. */
  streamChat(messages: readonly Message[], options: ChatOptions = {}): TextStream {
    const [prompt, rest] = this.split(options);
    return stream(async () => this.start([await this.chatPrompt(messages, prompt)], 1, rest));
  }

  /** Token ids of the prompt that `chat` makes of `messages`. */
  async chatPrompt(messages: readonly Message[], options: TemplateOptions = {}): Promise<number[]> {
    if (!this.info.special) throw new OptionError("this model has no tokenizer", "export it with --tokenizer");
    return this.backend.encodeChat(await this.template.render(messages, options));
  }

  /** Log-probabilities, perplexity and bits per byte of a text, of any length. */
  score(text: Prompt, options: ScoreOptions = {}): Promise<Score> {
    return this.backend.score(text, options);
  }

  /** A vector for each text, or one for each of its tokens. The file must have been exported with `--outputs`. */
  embed(text: Prompt, options?: EmbedOptions & { pooling?: "mean" | "last" }): Promise<Float32Array>;
  embed(texts: readonly Prompt[], options?: EmbedOptions & { pooling?: "mean" | "last" }): Promise<Float32Array[]>;
  embed(text: Prompt, options: EmbedOptions & { pooling: "none" }): Promise<Float32Array[]>;
  embed(texts: readonly Prompt[], options: EmbedOptions & { pooling: "none" }): Promise<Float32Array[][]>;
  async embed(texts: Prompt | readonly Prompt[], options: EmbedOptions = {}): Promise<Float32Array | Float32Array[] | Float32Array[][]> {
    const single = isSingle(texts), rows = await this.backend.embed(single ? [texts] : texts, options);
    const found = options.pooling === "none" ? rows : rows.map(([row]) => row!);
    return single ? found[0]! : found;
  }

  /** Next-token logits (vocab) at every position of `ids`, at most the context length. */
  logits(ids: readonly number[]): Promise<Float32Array[]> {
    return this.backend.logits(ids);
  }

  /** Check the file's bytes and replay what it must answer. Throws VerificationError where something differs. */
  verify(): Promise<VerifyReport> {
    return this.backend.verify();
  }

  /** Bytes that the engine holds: weights, cache, buffers. */
  memoryBytes(): Promise<number> {
    return this.backend.memoryBytes();
  }

  /** End what is under way and give the memory back. Later calls throw ClosedError. */
  close(): Promise<void> {
    return this.backend.close();
  }

  private async start(prompts: readonly Prompt[], n: number, options: GenerateOptions): Promise<Started> {
    const { signal, onToken, ...rest } = options;
    if (onToken !== undefined && typeof onToken !== "function") throw new OptionError("onToken is not a function", "give a function of a piece");
    return { pieces: await this.backend.generate({ prompts, n, options: rest }, signal), onToken };
  }

  /** The options of the prompt and those of generation. */
  private split({ tools, templateOptions, continueFinalMessage, ...rest }: ChatOptions): [TemplateOptions, GenerateOptions] {
    const prompt = { ...(tools ? { tools } : {}), ...(templateOptions ? { templateOptions } : {}), ...(continueFinalMessage ? { continueFinalMessage } : {}) };
    // A model without a template would go on to write the user's next turn.
    return [prompt, this.info.generation.chat_template || rest.stop ? rest : { ...rest, stop: [PLAIN_STOP] }];
  }
}

/** What `chat` and `streamChat` take. */
export interface ChatOptions extends GenerateOptions, TemplateOptions {}

interface Started {
  pieces: Pieces;
  onToken: ((piece: Piece) => void) | undefined;
}

function stream(start: () => Promise<Started>): TextStream {
  // Started at once, so that what is asked for is checked at the call and not at the first piece.
  const started = start(), stats = newStats();
  const ready = started.then(() => {});
  ready.catch(() => {});
  async function* pieces(): AsyncGenerator<Piece> {
    const { pieces, onToken } = await started;
    for await (const [piece, counts] of pieces) {
      Object.assign(stats, counts);
      onToken?.(piece);
      yield piece;
    }
  }
  return { stats, ready, [Symbol.asyncIterator]: pieces };
}

/** Whether this is one text or one list of ids, and not a list of them. */
function isSingle(prompt: Prompt | readonly Prompt[]): prompt is Prompt {
  if (typeof prompt === "string" || ArrayBuffer.isView(prompt)) return true;
  if (!Array.isArray(prompt)) throw new OptionError(`the prompt is ${String(prompt)}`, "give text, token ids, or a list of either");
  return prompt.length > 0 && prompt.every((item) => typeof item === "number");
}
