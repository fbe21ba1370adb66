import type { Piece } from "./generation/results.js";
import type { ChatOptions, LanguageModel } from "./languageModel.js";
import type { Message } from "./text/chatTemplate.js";
import { whole } from "./validation.js";

const DEFAULT_NEW_TOKENS = 128;

/**
 * A talk with a model that remembers, from an optional `system` message on.
 *
 * `messages` may be read, saved and changed between questions. When prompt and answer would not fit into the context,
 * the oldest exchange is forgotten, and not the system message; `forgotten` counts them.
 */
export class Conversation {
  messages: Message[] = [];
  forgotten = 0;

  constructor(
    readonly lm: LanguageModel, readonly system?: string,
  ) {
    this.reset();
  }

  /** Forget everything but the system message. */
  reset(): void {
    this.messages = this.system ? [{ role: "system", content: this.system }] : [];
    this.forgotten = 0;
  }

  /** Stream the answer to `text`. It is remembered when the stream ends, also one that is broken off. */
  async *ask(text: string, options: ChatOptions = {}): AsyncGenerator<Piece> {
    const limit = options.maxNewTokens ?? (this.lm.info.generation.max_new_tokens as number | undefined) ?? DEFAULT_NEW_TOKENS;
    const messages = await this.fitting([...this.messages, { role: "user", content: text }], limit, options);
    let said = "";
    try {
      for await (const piece of this.lm.streamChat(messages, options)) {
        said += (options.keepSpecial ? "" : this.hidden(piece)) + piece.text;
        yield piece;
      }
    } finally {
      this.forgotten += (this.messages.length + 1 - messages.length) >> 1;
      this.messages = [...messages, { role: "assistant", content: said.trim() }];
    }
  }

  /** The special token that a piece does not show: a template cuts answers at such (`[/THINK]`). */
  private hidden({ tokenId }: Piece): string {
    const { special, generation } = this.lm.info;
    if (!special || !generation.chat_template || tokenId === null) return "";
    return Object.keys(special).find((name) => special[name] === tokenId) ?? "";
  }

  /** `messages` without the oldest exchanges, so that an answer, of half the context at most, has room. */
  private async fitting(messages: Message[], maxNewTokens: number, { tools, templateOptions }: ChatOptions): Promise<Message[]> {
    whole("maxNewTokens", maxNewTokens, 0);
    const { contextLength: context } = this.lm.info, room = context - Math.min(maxNewTokens, context >> 1);
    const prompt = { ...(tools ? { tools } : {}), ...(templateOptions ? { templateOptions } : {}) };
    const first = messages[0]!.role === "system" ? 1 : 0;
    while (messages.length - first > 2 && (await this.lm.chatPrompt(messages, prompt)).length > room) {
      messages = [...messages.slice(0, first), ...messages.slice(first + 2)];
    }
    return messages;
  }
}
