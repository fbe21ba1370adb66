/** What generation can be asked for; the meanings are those of the Python package. Checked at the call. */
import { OptionError } from "../errors.js";
import { StopStrings } from "../text/stopStrings.js";
import type { AllowedSpecial } from "../text/tokenizer.js";
import { number, oneOf, shown, whole } from "../validation.js";
import type { Piece } from "./results.js";

/** (ids so far, logits (vocab)) -> logits; it may change them in place. -Infinity forbids a token. */
export type Processor = (ids: Int32Array, logits: Float32Array) => Float32Array | Promise<Float32Array>;

/** How tokens are chosen. */
export interface SamplingOptions {
  /** 0 takes the likeliest token. */
  temperature?: number;
  /** Keep the k likeliest tokens. 0: all. */
  topK?: number;
  /** Keep the likeliest tokens that together reach this probability. */
  topP?: number;
  /** Keep tokens of at least this share of the best token's probability. */
  minP?: number;
  /** Keep the tokens of the most typical surprise that together reach this probability. */
  typicalP?: number;
  /** Divides positive logits (multiplies negative ones) of tokens in the last `repeatLastN`. */
  repeatPenalty?: number;
  /** Tokens, prompt included, that the three penalties look back on. -1: all. */
  repeatLastN?: number;
  /** Taken off a token's logit, per use. */
  frequencyPenalty?: number;
  /** Taken off the logit of a token that was used. */
  presencePenalty?: number;
  /** Added to the logits of these token ids; -Infinity forbids one. */
  logitBias?: Record<number, number> | Map<number, number>;
  bannedTokens?: readonly number[];
  /** Ids that the output begins with. */
  forcedTokens?: readonly number[];
  /** Same seed, same text. Left out: a new one each time. Above 2^53 as a bigint. */
  seed?: number | bigint;
  processor?: Processor;
}

/** When generation ends, and what is done along the way. */
export interface LimitOptions {
  maxNewTokens?: number;
  /** Seconds after which no further pass starts. */
  maxTime?: number;
  /** Texts to end before. */
  stop?: readonly string[];
  /** When the context is full: see its last tokens only, stop, or refuse at the start. */
  overflow?: "slide" | "stop" | "error";
  /** Tokens to draft from earlier text: a fixed number, or as many as pay. 0: none. */
  lookup?: number | "auto";
  /** A text or token ids that lookup may draft from besides. */
  reference?: string | readonly number[];
  /** Give log-probabilities, and of this many alternatives. */
  logprobs?: number;
  /** Let special tokens in an answer be a part of its text. */
  keepSpecial?: boolean;
}

/** Hold the text to a form; at most one of them. */
export interface ConstraintOptions {
  choices?: readonly string[];
  /** Rust's syntax without Unicode properties; the whole text matches. */
  regex?: string;
}

export interface GenerateOptions extends SamplingOptions, LimitOptions, ConstraintOptions {
  /** Special tokens whose text in the prompt stands for them, or "all". */
  allowedSpecial?: AllowedSpecial;
  /** Ends generation after the pass under way, with the finish reason "cancelled". */
  signal?: AbortSignal;
  /** Called with each piece as it is made. */
  onToken?: (piece: Piece) => void;
}

export type Sampling = Required<Omit<SamplingOptions, "seed" | "processor" | "logitBias">> & {
  logitBias: Map<number, number>;
  seed: bigint | undefined;
  processor: Processor | undefined;
};

export type Limits = Required<Pick<LimitOptions, "maxNewTokens" | "overflow" | "lookup" | "keepSpecial">> & {
  maxTime: number | undefined;
  stop: readonly string[];
  reference: Int32Array;
  logprobs: number | undefined;
};

const SAMPLING: Sampling = {
  temperature: 0, topK: 0, topP: 1, minP: 0, typicalP: 1, repeatPenalty: 1, repeatLastN: 64, frequencyPenalty: 0,
  presencePenalty: 0, logitBias: new Map(), bannedTokens: [], forcedTokens: [], seed: undefined, processor: undefined,
};
const LIMITS: Limits = {
  maxNewTokens: 128, maxTime: undefined, stop: [], overflow: "slide", lookup: "auto", reference: new Int32Array(0), logprobs: undefined, keepSpecial: false,
};
const ELSEWHERE = ["choices", "regex", "allowedSpecial", "signal", "onToken"];

// What a model file may set as the default of an option, by its name there.
const DEFAULTS_FROM_FILE: Record<string, keyof GenerateOptions> = {
  temperature: "temperature", top_k: "topK", top_p: "topP", min_p: "minP", typical_p: "typicalP", repeat_penalty: "repeatPenalty",
  repeat_last_n: "repeatLastN", frequency_penalty: "frequencyPenalty", presence_penalty: "presencePenalty",
  banned_tokens: "bannedTokens", max_new_tokens: "maxNewTokens", stop: "stop",
};

/** The defaults that a file's `edgelm.generation` sets. */
export function defaultsFromFile(generation: Record<string, unknown>): GenerateOptions {
  const found: Record<string, unknown> = {};
  for (const [theirs, ours] of Object.entries(DEFAULTS_FROM_FILE)) {
    if (generation[theirs] !== undefined && generation[theirs] !== null) found[ours] = generation[theirs];
  }
  return found;
}

/** Options as given, without those that are undefined. Throws OptionError for an unknown one. */
export function known(options: GenerateOptions): GenerateOptions {
  const names = [...Object.keys(SAMPLING), ...Object.keys(LIMITS), ...ELSEWHERE];
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null);
  const unknown = given.find(([name]) => !names.includes(name));
  if (unknown?.[0] === "jsonSchema") throw new OptionError("jsonSchema is not supported in JavaScript", "use regex, choices, or the Python package");
  if (unknown) throw new OptionError(`unknown option ${shown(unknown[0])}`, `known are ${names.sort().join(", ")}`);
  return Object.fromEntries(given);
}

/** Check sampling options for a vocabulary of `vocabSize`. */
export function checkSampling(options: GenerateOptions, vocabSize: number): Sampling {
  const pick = <K extends keyof Sampling>(name: K): unknown => options[name as keyof GenerateOptions] ?? SAMPLING[name];
  const values = Object.fromEntries(Object.keys(SAMPLING).map((name) => [name, pick(name as keyof Sampling)])) as unknown as Sampling;
  number("temperature", values.temperature, 0, Infinity);
  number("topP", values.topP, 0, 1, true);
  number("typicalP", values.typicalP, 0, 1, true);
  number("minP", values.minP, 0, 1);
  number("repeatPenalty", values.repeatPenalty, 0, Infinity, true);
  number("frequencyPenalty", values.frequencyPenalty, -Infinity, Infinity);
  number("presencePenalty", values.presencePenalty, -Infinity, Infinity);
  whole("topK", values.topK, 0);
  whole("repeatLastN", values.repeatLastN, -1);
  values.seed = checkSeed(options.seed);
  for (const name of ["bannedTokens", "forcedTokens"] as const) checkTokens(name, values[name], vocabSize);
  values.logitBias = checkBias(options.logitBias, vocabSize);
  if (values.processor !== undefined && typeof values.processor !== "function") {
    throw new OptionError(`processor is ${shown(values.processor)}`, "give a function of (ids, logits)");
  }
  return values;
}

/** Check limits; `reference` are token ids by now. */
export function checkLimits(options: Omit<GenerateOptions, "reference"> & { reference?: Int32Array }): Limits {
  const values: Limits = {
    maxNewTokens: options.maxNewTokens ?? LIMITS.maxNewTokens, maxTime: options.maxTime, stop: options.stop ?? LIMITS.stop,
    overflow: options.overflow ?? LIMITS.overflow, lookup: options.lookup ?? LIMITS.lookup,
    reference: options.reference ?? LIMITS.reference, logprobs: options.logprobs, keepSpecial: options.keepSpecial ?? false,
  };
  whole("maxNewTokens", values.maxNewTokens, 0);
  if (values.maxTime !== undefined) number("maxTime", values.maxTime, 0, Infinity, true);
  oneOf("overflow", values.overflow, ["slide", "stop", "error"]);
  if (values.lookup !== "auto") whole("lookup", values.lookup, 0, 1024);
  if (typeof values.keepSpecial !== "boolean") throw new OptionError(`keepSpecial is ${shown(values.keepSpecial)}`, "give true or false");
  if (values.logprobs !== undefined) whole("logprobs", values.logprobs, 0);
  new StopStrings(values.stop);
  return values;
}

function checkSeed(seed: number | bigint | undefined): bigint | undefined {
  if (seed === undefined) return undefined;
  const fits = typeof seed === "bigint" ? seed >= 0n && seed < 1n << 64n : Number.isSafeInteger(seed) && seed >= 0;
  if (!fits) throw new OptionError(`seed is ${shown(seed)}`, "give a whole number from 0 to 2^53 - 1, or a bigint below 2^64");
  return BigInt(seed);
}

function checkTokens(name: string, ids: readonly number[], vocabSize: number): void {
  if (!Array.isArray(ids) && !ArrayBuffer.isView(ids)) throw new OptionError(`${name} is ${shown(ids)}`, "give a list of token ids");
  for (const id of ids) checkToken(name, id, vocabSize);
}

function checkToken(name: string, id: number, vocabSize: number): void {
  whole(`a token id in ${name}`, id, 0);
  if (id >= vocabSize) throw new OptionError(`token id ${id} is outside the vocabulary of ${vocabSize}`, `give ids from 0 to ${vocabSize - 1}`);
}

function checkBias(given: GenerateOptions["logitBias"], vocabSize: number): Map<number, number> {
  if (given !== undefined && (typeof given !== "object" || Array.isArray(given))) {
    throw new OptionError(`logitBias is ${shown(given)}`, "give an object of token ids and numbers");
  }
  const entries = given instanceof Map ? [...given] : Object.entries(given ?? {});
  const bias = new Map(entries.map(([id, value]) => [Number(id), value] as [number, number]));
  for (const [id, value] of bias) {
    checkToken("logitBias", id, vocabSize);
    if (value !== -Infinity) number(`logitBias of ${id}`, value, -Infinity, Infinity);
  }
  return bias;
}
