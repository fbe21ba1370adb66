/** Fill a Jinja template; the interpreter is loaded when it is first needed. */
export async function fillTemplate(template: string, variables: Record<string, unknown>): Promise<string> {
  const { Template } = await import("./jinja.js");
  return new Template(withoutGeneration(template)).render(variables);
}

/** `{% generation %}` marks the assistant's part for training, and changes no text. */
function withoutGeneration(template: string): string {
  return template.replace(/\{%-?\s*(?:end)?generation\s*-?%\}/g, "");
}
