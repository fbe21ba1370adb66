/** A model in a worker, seen from the page. */
import type { Backend, ModelInfo, Pieces, Prompt, Request } from "../backend.js";
import type { EmbedOptions } from "../embedding.js";
import { ClosedError, EdgelmError, errorFromPlain, errorToPlain } from "../errors.js";
import type { Processor } from "../generation/options.js";
import type { Piece, Stats } from "../generation/results.js";
import type { Progress } from "../open.js";
import type { VerifyReport } from "../reports/verify.js";
import type { Score, ScoreOptions } from "../scoring.js";
import type { ChatText } from "../text/chatTemplate.js";
import type { AllowedSpecial } from "../text/tokenizer.js";
import type { FromWorker, SentModel, SentOptions, ToWorker } from "./messages.js";

type Answer = (message: FromWorker) => void;
type Unnumbered<T> = T extends { id: number } ? Omit<T, "id"> : never;

export class WorkerBackend implements Backend {
  info!: ModelInfo;
  private readonly answers = new Map<number, Answer>();
  private last = 0;
  private closed = false;

  private constructor(private readonly worker: Worker) {
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.answers.get(data.id)?.(data);
    worker.onerror = (event) => this.end(new EdgelmError(`the model's worker failed: ${event.message ?? "it could not be started"}`, "see the console, or load with {worker: false}"));
  }

  /** Open a model in `worker`. Where that fails, or `signal` is aborted, the worker is ended. */
  static async open(
    worker: Worker, model: SentModel, options: SentOptions, onProgress: ((progress: Progress) => void) | undefined, signal: AbortSignal | undefined,
  ): Promise<WorkerBackend> {
    const backend = new WorkerBackend(worker);
    try {
      signal?.throwIfAborted();
      backend.info = await new Promise<ModelInfo>((resolve, reject) => {
        signal?.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
        backend.send({ kind: "open", model, options }, (message) => {
          if (message.kind === "progress") onProgress?.(message.progress);
          else if (message.kind === "opened") resolve(message.info);
          else if (message.kind === "error") reject(errorFromPlain(message.error));
        });
      });
      return backend;
    } catch (error) {
      backend.end(new ClosedError("the model is closed", "load it again"));
      throw error;
    }
  }

  encode(text: string, allowedSpecial: AllowedSpecial): Promise<number[]> {
    return this.call("encode", text, allowedSpecial === "all" ? "all" : [...allowedSpecial]);
  }

  encodePrompt(prompt: Prompt): Promise<number[]> {
    return this.call("encodePrompt", prompt);
  }

  encodeChat(prompt: ChatText): Promise<number[]> {
    return this.call("encodeChat", prompt);
  }

  decode(ids: readonly number[], skipSpecial: boolean): Promise<string> {
    return this.call("decode", ids, skipSpecial);
  }

  score(text: Prompt, options: ScoreOptions): Promise<Score> {
    return this.call("score", text, options);
  }

  embed(texts: readonly Prompt[], options: EmbedOptions): Promise<Float32Array[][]> {
    return this.call("embed", texts, options);
  }

  logits(ids: readonly number[]): Promise<Float32Array[]> {
    return this.call("logits", ids);
  }

  verify(): Promise<VerifyReport> {
    return this.call("verify");
  }

  memoryBytes(): Promise<number> {
    return this.call("memoryBytes");
  }

  async generate(request: Request, signal: AbortSignal | undefined): Promise<Pieces> {
    const { processor, ...rest } = request.options;
    const options = { ...rest, ...(rest.allowedSpecial && rest.allowedSpecial !== "all" ? { allowedSpecial: [...rest.allowedSpecial] } : {}) };
    const arrived: (FromWorker & { kind: "piece" })[] = [];
    let over = false, failure: Error | null = null, wake = (): void => {};
    const id = await new Promise<number>((resolve, reject) => {
      const number = this.send({ kind: "generate", request: { ...request, options }, process: processor !== undefined }, (message) => {
        if (message.kind === "started") resolve(number);
        else if (message.kind === "process") void this.process(message, processor!);
        else if (message.kind === "piece") arrived.push(message);
        else {
          over = true;
          if (message.kind === "error") reject((failure = errorFromPlain(message.error)));
        }
        wake();
      });
    });
    const cancel = (): void => this.post({ kind: "cancel", id });
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    return (async function* (): AsyncGenerator<[Piece, Stats], void, void> {
      try {
        for (;;) {
          for (let next = arrived.shift(); next; next = arrived.shift()) yield [next.piece, next.stats];
          if (failure) throw failure;
          if (over) return;
          await new Promise<void>((resolve) => (wake = resolve));
        }
      } finally {
        signal?.removeEventListener("abort", cancel);
        if (!over) cancel();
      }
    })();
  }

  async close(): Promise<void> {
    if (this.closed) return;
    await this.call("close").catch(() => {});
    this.end(new ClosedError("the model is closed", "load it again"));
  }

  private async process({ id, ids, logits }: FromWorker & { kind: "process" }, processor: Processor): Promise<void> {
    try {
      this.post({ kind: "processed", id, logits: await processor(ids, logits), error: null });
    } catch (error) {
      this.post({ kind: "processed", id, logits: null, error: errorToPlain(error) });
    }
  }

  private call<T>(method: (ToWorker & { kind: "call" })["method"], ...args: unknown[]): Promise<T> {
    return new Promise((resolve, reject) => {
      this.send({ kind: "call", method, args }, (message) => {
        if (message.kind === "result") resolve(message.value as T);
        else if (message.kind === "error") reject(errorFromPlain(message.error));
      });
    });
  }

  /** Post a message with a number of its own; `answer` gets what comes back. */
  private send(message: Unnumbered<ToWorker>, answer: Answer): number {
    const id = ++this.last;
    this.answers.set(id, (reply) => {
      if (reply.kind === "result" || reply.kind === "error" || reply.kind === "opened") this.answers.delete(id);
      answer(reply);
    });
    if (this.closed) this.answers.get(id)!({ kind: "error", id, error: errorToPlain(new ClosedError("the model is closed", "load it again")) });
    else this.post({ ...message, id } as ToWorker);
    return id;
  }

  private post(message: ToWorker): void {
    this.worker.postMessage(message);
  }

  /** No more answers will come. */
  private end(error: Error): void {
    this.closed = true;
    this.worker.terminate();
    for (const [id, answer] of [...this.answers]) answer({ kind: "error", id, error: errorToPlain(error) });
  }
}
