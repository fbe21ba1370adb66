/** Parts that the tests look at by themselves; not in the package. */
export { errorFromPlain, errorToPlain } from "./errors.js";
export { compileRegex } from "./generation/regex.js";
export { draft, DraftLength } from "./generation/promptLookup.js";
export { largest, nucleus, typical } from "./generation/filters.js";
export { uniform } from "./generation/philox.js";
export { fileDigest } from "./modelFile/digest.js";
export { checkConfig } from "./modelFile/config.js";
export { bytesSource } from "./modelFile/source.js";
export { translate } from "./text/pattern.js";
export { Detokenizer } from "./text/detokenizer.js";
export { StopStrings } from "./text/stopStrings.js";
export { Tokenizer } from "./text/tokenizer.js";
export { download } from "./download/download.js";
