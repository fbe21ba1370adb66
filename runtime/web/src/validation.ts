import { OptionError } from "./errors.js";

/** Throw OptionError unless `value` is a whole number from `low` to `high`. */
export function whole(name: string, value: unknown, low: number, high = Infinity): void {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= low && value <= high) return;
  const bound = high < Infinity ? `from ${low} to ${high}` : `of at least ${low}`;
  throw new OptionError(`${name} is ${shown(value)}`, `give a whole number ${bound}`);
}

/** Throw OptionError unless `value` is a finite number from `low`, itself included or not, to `high`. */
export function number(name: string, value: unknown, low: number, high: number, openLow = false): void {
  if (typeof value === "number" && Number.isFinite(value) && value >= low && value <= high && !(openLow && value === low)) return;
  let bound: string;
  if (low === -Infinity) bound = "give a finite number";
  else if (high === Infinity) bound = openLow ? `give a number above ${low}` : `give a number of at least ${low}`;
  else bound = `give a number ${openLow ? "above" : "from"} ${low} up to ${high}`;
  throw new OptionError(`${name} is ${shown(value)}`, bound);
}

/** Throw OptionError unless `value` is one of `choices`. */
export function oneOf(name: string, value: unknown, choices: readonly string[]): void {
  if (typeof value !== "string" || !choices.includes(value)) {
    throw new OptionError(`${name} is ${shown(value)}`, `choose one of ${choices.join(", ")}`);
  }
}

/** Token ids as an Int32Array. Throws OptionError where they are none, not whole, or outside the vocabulary. */
export function checkIds(ids: ArrayLike<number>, vocabSize: number, name = "the prompt"): Int32Array {
  if (typeof ids !== "object" || ids === null || typeof ids.length !== "number") {
    throw new OptionError(`${name} is ${shown(ids)}`, "give text, or a list of token ids");
  }
  if (!ids.length) throw new OptionError(`${name} is empty`, "give at least one token");
  for (let i = 0; i < ids.length; i++) {
    const id = ids[i];
    if (typeof id !== "number" || !Number.isInteger(id)) throw new OptionError(`${name} holds ${shown(id)}`, "give whole numbers");
    if (id < 0 || id >= vocabSize) {
      throw new OptionError(`token id ${id} is outside the vocabulary of ${vocabSize}`, `give ids from 0 to ${vocabSize - 1}`);
    }
  }
  return Int32Array.from(ids);
}

/** A value as an error message shows it. */
export function shown(value: unknown): string {
  if (typeof value === "bigint") return String(value);
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}
