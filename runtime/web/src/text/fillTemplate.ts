import { OptionError } from "../errors.js";

/** Fill a Jinja template; the interpreter is loaded when it is first needed. */
export async function fillTemplate(template: string, variables: Record<string, unknown>): Promise<string> {
  const { Template } = await import("@huggingface/jinja");
  const refuse = (message: string): never => {
    throw new OptionError(`the model's chat template refuses these messages: ${message}`);
  };
  return new Template(withoutGeneration(template)).render({ raise_exception: refuse, strftime_now: strftime, ...variables });
}

/** `{% generation %}` marks the assistant's part for training, and changes no text. */
function withoutGeneration(template: string): string {
  return template.replace(/\{%-?\s*(?:end)?generation\s*-?%\}/g, "");
}

/** The present time in a form of C's strftime: what chat templates ask for. */
function strftime(form: string): string {
  const now = new Date(), two = (value: number): string => String(value).padStart(2, "0");
  const name = (options: Intl.DateTimeFormatOptions): string => new Intl.DateTimeFormat("en-US", options).format(now);
  const parts: Record<string, string> = {
    "%": "%", d: two(now.getDate()), m: two(now.getMonth() + 1), Y: String(now.getFullYear()), y: two(now.getFullYear() % 100), H: two(now.getHours()),
    M: two(now.getMinutes()), S: two(now.getSeconds()), B: name({ month: "long" }), b: name({ month: "short" }), A: name({ weekday: "long" }), a: name({ weekday: "short" }),
  };
  return form.replace(/%([%a-zA-Z])/g, (all, letter: string) => parts[letter] ?? all);
}
