/**
 * Conversations to prompts: the model's own template where it has one, names and colons where it has none.
 *
 * A special token that a message spells is ordinary text, so that no message can pretend to be another role's. Only
 * what an answer itself may hold stays a special token in an earlier answer; what frames messages does not. Templates
 * are Jinja programs; @huggingface/jinja runs them, loaded only when there is one.
 */
import { OptionError } from "../errors.js";
import { shown } from "../validation.js";
import { StandIns, type Plain } from "./standIns.js";

/** `role` and `content`, and whatever else the model's template reads (`name`, `tool_calls`, ...). */
export interface Message {
  role: string;
  content?: string | readonly (string | TextPart)[];
  [field: string]: unknown;
}

/** A part of a content. */
export interface TextPart {
  type: "text";
  text: string;
  [field: string]: unknown;
}

/** What a prompt may be asked for besides messages. */
export interface TemplateOptions {
  /** JSON schemas of functions that the model may call. */
  tools?: readonly object[];
  /** Further variables of the chat template, such as `enable_thinking`. */
  templateOptions?: Record<string, unknown>;
  /** Go on with the last message, an answer that was begun, instead of asking for a new one. */
  continueFinalMessage?: boolean;
}

/** A prompt as text, and characters in it that stand for ordinary text. */
export interface ChatText {
  text: string;
  /** Whether the text of special tokens stands for them: a template's does. */
  special: boolean;
  standIns: [character: string, meant: string][];
}

/** Fills a Jinja template with variables. */
export type FillTemplate = (template: string, variables: Record<string, unknown>) => Promise<string>;

export const PLAIN_STOP = "\nUser:";

const ROLES = ["system", "developer", "user", "assistant", "tool"];
const RESERVED = ["messages", "add_generation_prompt", "tools"];
const PROBE = "probe text";

/** Renders conversations for one model: its `template`, the texts of its special tokens, `bos_token` and `eos_token`. */
export class ChatTemplate {
  private framing: Promise<ReadonlySet<string>> | null = null;
  // Whether the template shows contents that are lists of parts, and texts.
  private parts: Promise<boolean> | null = null;
  private texts: Promise<boolean> | null = null;

  constructor(
    private readonly template: string | null, private readonly special: readonly string[], private readonly variables: Record<string, string>,
    private readonly fill: FillTemplate,
  ) {}

  /** The prompt for `messages`. Throws OptionError for messages of another form, and where the template refuses them. */
  async render(messages: readonly Message[], { tools, templateOptions, continueFinalMessage = false }: TemplateOptions = {}): Promise<ChatText> {
    let conversation = checked(messages, this.special);
    if (this.template === null && (tools || templateOptions)) throw new OptionError("tools or templateOptions are given, and this model has no chat template");
    const reserved = Object.keys(templateOptions ?? {}).find((name) => RESERVED.includes(name));
    if (reserved) throw new OptionError(`templateOptions sets ${reserved}`, "give it as an option of its own");
    const hiding = new StandIns([conversation, tools, templateOptions] as Plain);
    const variables = { ...this.variables, tools: null, documents: null, ...templateOptions, ...(tools ? { tools } : {}) } as Record<string, Plain>;
    if (this.template !== null) {
      const framing = await (this.framing ??= this.findFraming());
      conversation = conversation.map((message) => Object.fromEntries(Object.entries(message).map(([field, value]) => [
        field, field === "role" ? value : hiding.put(value as Plain, ownWords(message, field) ? framing : this.special),
      ])) as Message);
      for (const name of [...Object.keys(templateOptions ?? {}), ...(tools ? ["tools"] : [])]) variables[name] = hiding.put(variables[name], this.special);
    }
    const mark = continueFinalMessage ? hiding.make() : "";
    if (mark) conversation = [...conversation.slice(0, -1), marked(conversation.at(-1)!, mark)];
    const text = this.template === null ? plain(conversation, !mark) : await this.filled(await this.inForm(conversation), variables, !mark);
    return { text: mark ? cutAt(text, mark) : text, special: this.template !== null, standIns: [...hiding.meant] };
  }

  private async filled(messages: readonly Message[], variables: Record<string, unknown>, prompt: boolean): Promise<string> {
    try {
      return await this.fill(this.template!, { ...variables, messages, add_generation_prompt: prompt });
    } catch (error) {
      if (error instanceof OptionError) throw error;
      throw new OptionError(`the model's chat template refuses these messages: ${(error as Error).message}`);
    }
  }

  /** The special tokens that the template writes around messages, and those that begin and end texts. */
  private async findFraming(): Promise<ReadonlySet<string>> {
    const [system, user, answer] = ["system", "user", "assistant"].map((role) => ({ role, content: PROBE })) as [Message, Message, Message];
    for (const talk of [[system, user, answer, user], [user, answer, user], [user]]) {
      try {
        const text = await this.filled(await this.inForm(talk), { ...this.variables, tools: null, documents: null }, false);
        return new Set([...this.special.filter((name) => text.includes(name)), ...Object.values(this.variables).filter(Boolean)]);
      } catch {
        continue;
      }
    }
    return new Set(this.special);
  }

  /** Contents as text or as lists of parts, as the template reads them. */
  private async inForm(conversation: readonly Message[]): Promise<readonly Message[]> {
    const parts = (): Promise<boolean> => (this.parts ??= this.shows([{ type: "text", text: PROBE }]));
    if (conversation.some(({ content }) => Array.isArray(content))) return (await parts()) ? conversation : conversation.map(joined);
    if ((await (this.texts ??= this.shows(PROBE))) || !(await parts())) return conversation;
    return conversation.map((message) => (typeof message.content === "string" ? { ...message, content: [{ type: "text", text: message.content }] } : message));
  }

  /** Whether the template writes such a content, and not the form that it has. */
  private async shows(content: unknown): Promise<boolean> {
    try {
      const text = await this.fill(this.template!, { ...this.variables, tools: null, documents: null, messages: [{ role: "user", content }], add_generation_prompt: true });
      return text.includes(PROBE) && !text.includes(`'${PROBE}'`) && !text.includes(`"${PROBE}"`);
    } catch {
      return false;
    }
  }
}

/** Whether a field holds what the model said, special tokens included. */
function ownWords(message: Message, field: string): boolean {
  return message.role === "assistant" && ["content", "reasoning_content", "thinking"].includes(field);
}

function marked(message: Message, mark: string): Message {
  if (message.role !== "assistant" || !message.content?.length) throw new OptionError("there is no answer to continue", "the last message must be the assistant's");
  // Whether the space is there after rendering shows whether the template trims its messages.
  if (typeof message.content === "string") return { ...message, content: `${message.content}${mark} ` };
  const last = message.content.at(-1) as TextPart;
  return { ...message, content: [...message.content.slice(0, -1), { ...last, text: `${last.text}${mark} ` }] };
}

/** The message with the parts of its content as one text, a part a line. */
function joined(message: Message): Message {
  const { content } = message;
  return Array.isArray(content) ? { ...message, content: (content as TextPart[]).map(({ text }) => text).join("\n") } : message;
}

function part(given: unknown): TextPart {
  if (typeof given === "string") return { type: "text", text: given };
  const { type, text } = (given ?? {}) as TextPart;
  if (type === "text" && typeof text === "string") return given as TextPart;
  throw new OptionError(`a part of a message is ${shown(type ?? given)}`, 'edgelm takes {type: "text", text: ...} only');
}

function cutAt(text: string, mark: string): string {
  const at = text.lastIndexOf(mark);
  if (at < 0) throw new OptionError("the model's chat template leaves the last answer out", "ask for a new answer instead");
  return text[at + mark.length] === " " ? text.slice(0, at) : text.slice(0, at).trimEnd();
}

function plain(messages: readonly Message[], prompt: boolean): string {
  const lines = messages.map(joined).map(({ role, content = "" }) => {
    if (!ROLES.includes(role)) throw new OptionError(`a message has role ${shown(role)}`, `choose one of ${ROLES.join(", ")}`);
    return role === "system" || role === "developer" ? (content as string) : `${role[0]!.toUpperCase()}${role.slice(1)}: ${content}`;
  });
  return [...lines, ...(prompt ? ["Assistant:"] : [])].join("\n");
}

/** Copies of the messages, without fields that are null. */
function checked(messages: readonly Message[], special: readonly string[]): Message[] {
  if (!Array.isArray(messages) || !messages.length) {
    throw new OptionError(`messages is ${shown(messages)}`, 'give a list such as [{role: "user", content: "Hi"}]');
  }
  return messages.map((message: Message) => {
    const { role, content } = message ?? {};
    if (typeof role !== "string" || !role || role.length > 64) throw new OptionError(`a message has role ${shown(role)}`, `choose one of ${ROLES.join(", ")}`);
    if (!ROLES.includes(role) && special.some((text) => text.includes(role))) {
      throw new OptionError(`a message has role ${shown(role)}, a part of a special token`, "choose another name");
    }
    if (!Array.isArray(content) && typeof content !== "string" && !(content === undefined && message.tool_calls)) throw new OptionError(`a message is ${shown(message)}`, "give role and content, both text");
    const made = Object.fromEntries(Object.entries(message).filter(([, value]) => value !== null && value !== undefined)) as Message;
    if (Array.isArray(content)) made.content = content.map(part);
    const thought = made.reasoning_content ?? made.thinking ?? made.reasoning;
    return thought === undefined ? made : { thinking: thought, ...made, reasoning_content: thought };
  });
}
