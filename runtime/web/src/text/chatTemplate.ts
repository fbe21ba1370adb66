/**
 * Conversations to prompts: the model's own template where it has one, names and colons where it has none.
 *
 * Templates are Jinja programs; @huggingface/jinja runs them, loaded only when there is one.
 */
import { OptionError } from "../errors.js";
import { shown } from "../validation.js";

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
}

/** Text, and whether the text of special tokens in it stands for them. */
export interface ChatPart {
  text: string;
  special: boolean;
}

/** Fills a Jinja template with variables. */
export type FillTemplate = (template: string, variables: Record<string, unknown>) => Promise<string>;

export const PLAIN_STOP = "\nUser:";
const ROLES = ["system", "user", "assistant", "tool"];
const PRIVATE_USE = 0xf0000;

/**
 * The prompt for `messages`, in parts. Special-token text inside a message is ordinary text: only the template's own
 * becomes special tokens, so no message can pretend to be another role's. `special` are the texts of special tokens,
 * `variables` what the template may name besides the messages (`bos_token`, `eos_token`).
 */
export async function chatParts(
  messages: readonly Message[], template: string | null, special: readonly string[], variables: Record<string, string>, fill: FillTemplate,
): Promise<ChatPart[]> {
  checkMessages(messages);
  const written = messages.map((message) => message.content).join("\0");
  // A stand-in from the private use area for each special token's text, until the template has been filled.
  const standIns = new Map<string, string>();
  special.forEach((text, i) => {
    if (text && written.includes(text)) standIns.set(String.fromCodePoint(PRIVATE_USE + i), text);
  });
  const longestFirst = [...standIns].sort(([, a], [, b]) => b.length - a.length);
  const safe = messages.map((message) => ({
    ...message,
    content: longestFirst.reduce((content, [standIn, text]) => content.replaceAll(text, standIn), message.content),
  }));
  const rendered = template === null ? plain(safe) : await filled(template, safe, variables, fill);
  if (!standIns.size) return [{ text: rendered, special: true }];
  const parts = rendered.split(new RegExp(`([${[...standIns.keys()].join("")}])`, "u"));
  return parts.map((part) => {
    const text = standIns.get(part);
    return text === undefined ? { text: part, special: true } : { text, special: false };
  });
}

async function filled(template: string, messages: readonly Message[], variables: Record<string, string>, fill: FillTemplate): Promise<string> {
  try {
    // Templates tell "none" from "undefined" and expect the former.
    return await fill(template, { messages, add_generation_prompt: true, tools: null, documents: null, ...variables });
  } catch (error) {
    if (error instanceof OptionError) throw error;
    throw new OptionError(`the model's chat template refuses these messages: ${(error as Error).message}`);
  }
}

function plain(messages: readonly Message[]): string {
  const lines = messages.map(({ role, content }) => (role === "system" ? content : `${role[0]!.toUpperCase()}${role.slice(1)}: ${content}`));
  return [...lines, "Assistant:"].join("\n");
}

function checkMessages(messages: readonly Message[]): void {
  if (!Array.isArray(messages) || !messages.length) {
    throw new OptionError(`messages is ${shown(messages)}`, 'give a list such as [{role: "user", content: "Hi"}]');
  }
  for (const message of messages) {
    if (typeof message?.content !== "string") throw new OptionError(`a message is ${shown(message)}`, "give role and content, both text");
    if (!ROLES.includes(message.role)) throw new OptionError(`a message has role ${shown(message.role)}`, `choose one of ${ROLES.join(", ")}`);
  }
}
