/** Text held to choices or a regular expression: which tokens may follow. */
import { OptionError } from "../errors.js";
import type { Tokenizer } from "../text/tokenizer.js";
import type { ConstraintOptions } from "./options.js";
import { compileChoices, compileRegex, type Automaton, type State } from "./regex.js";

/** A form for texts of one model. */
export class Constraint {
  private readonly tokens: Uint8Array[];
  private readonly masks = new Map<State, Uint8Array>();

  constructor(
    readonly automaton: Automaton, tokenizer: Tokenizer, readonly vocabSize: number, readonly endIds: readonly number[],
  ) {
    this.tokens = Array.from({ length: tokenizer.vocabSize }, (_, id) => tokenizer.decodeBytes([id], true));
  }

  start(): ConstraintState {
    return new ConstraintState(this);
  }

  after(state: State | null, id: number): State | null {
    for (const byte of this.tokens[id] ?? []) {
      if (!state) return null;
      state = this.automaton.step(state, byte);
    }
    return state;
  }

  /** 1 for each token (vocab) that keeps the text valid; for end tokens where it may end. */
  mask(state: State): Uint8Array {
    let mask = this.masks.get(state);
    if (!mask) {
      mask = new Uint8Array(this.vocabSize);
      for (let id = 0; id < this.tokens.length; id++) if (this.tokens[id]!.length && this.after(state, id)) mask[id] = 1;
      for (const id of this.endIds) mask[id] = state.accepting ? 1 : 0;
      this.masks.set(state, mask);
    }
    return mask;
  }
}

/** Which tokens may follow one text so far. Texts only grow. */
export class ConstraintState {
  private state: State;
  private length = 0;

  constructor(private readonly constraint: Constraint) {
    this.state = constraint.automaton.start;
  }

  /** Forbid in `logits` what may not follow the tokens `made`. */
  restrict(logits: Float32Array, made: Int32Array): void {
    const mask = this.constraint.mask(this.advance(made));
    for (let id = 0; id < logits.length; id++) if (!mask[id]) logits[id] = -Infinity;
  }

  /** Whether the text is whole and nothing can follow it. */
  complete(made: Int32Array): boolean {
    const state = this.advance(made);
    return state.accepting && state.final;
  }

  private advance(made: Int32Array): State {
    for (const id of made.subarray(this.length)) {
      const next = this.constraint.after(this.state, id);
      if (!next) throw new OptionError("forcedTokens contradict the constraint", "leave one of them out");
      this.state = next;
    }
    this.length = made.length;
    return this.state;
  }
}

/** The constraint that the options ask for; null where they ask for none. */
export function makeConstraint(
  options: ConstraintOptions, tokenizer: Tokenizer | null, vocabSize: number, endIds: readonly number[],
): Constraint | null {
  const { choices, regex } = options;
  if (choices === undefined && regex === undefined) return null;
  if (choices !== undefined && regex !== undefined) throw new OptionError("choices and regex exclude each other", "give one of them");
  if (!tokenizer) throw new OptionError("constrained output needs a tokenizer", "this model has none");
  const automaton = choices !== undefined ? compileChoices(choices) : compileRegex(regex!);
  return new Constraint(automaton, tokenizer, vocabSize, endIds);
}
