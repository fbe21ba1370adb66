/**
 * Every error that edgelm raises on purpose: `problem` says what is wrong and names the value, `remedy` what to do.
 * `name` tells the kinds apart, also when an error has crossed from a worker.
 */
export class EdgelmError extends Error {
  override name = "EdgelmError";

  constructor(
    readonly problem: string,
    readonly remedy = "",
  ) {
    super(remedy ? `${problem}; ${remedy}` : problem);
  }
}

/** A value that a caller passed cannot be used: an option, a token id, a prompt. */
export class OptionError extends EdgelmError {
  override name = "OptionError";
}
/** A model file is missing, damaged, too new, or of a form that this engine does not compute. */
export class ModelFileError extends EdgelmError {
  override name = "ModelFileError";
}
/** A model file does not reproduce the results that it was exported with. */
export class VerificationError extends EdgelmError {
  override name = "VerificationError";
}
/** A tokenizer cannot be read. */
export class TokenizerError extends EdgelmError {
  override name = "TokenizerError";
}
/** The model gave NaN or infinite logits, so there is nothing to sample from. */
export class NumericsError extends EdgelmError {
  override name = "NumericsError";
}
/** The model was closed before this call. */
export class ClosedError extends EdgelmError {
  override name = "ClosedError";
}
/** A model could not be downloaded. */
export class DownloadError extends EdgelmError {
  override name = "DownloadError";
}

const KINDS = {
  EdgelmError, OptionError, ModelFileError, VerificationError, TokenizerError, NumericsError, ClosedError, DownloadError,
};

/** An error as plain values, for a message to another thread. */
export function errorToPlain(error: unknown): { name: string; problem: string; remedy: string } {
  if (error instanceof EdgelmError) return { name: error.name, problem: error.problem, remedy: error.remedy };
  const { name, message } = error instanceof Error ? error : { name: "Error", message: String(error) };
  return { name, problem: message, remedy: "" };
}

/** The inverse of `errorToPlain`. */
export function errorFromPlain(plain: { name: string; problem: string; remedy: string }): Error {
  const kind = Object.hasOwn(KINDS, plain.name) ? KINDS[plain.name as keyof typeof KINDS] : undefined;
  if (kind) return new kind(plain.problem, plain.remedy);
  const error = plain.name === "AbortError" ? new DOMException(plain.problem, "AbortError") : new Error(plain.problem);
  return error;
}
