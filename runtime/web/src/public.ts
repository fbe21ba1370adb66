/** What both builds, for Node and for browsers, offer. */
export { Conversation } from "./conversation.js";
export {
  ClosedError, DownloadError, EdgelmError, ModelFileError, NumericsError, OptionError, TokenizerError, VerificationError,
} from "./errors.js";
export { tokensPerSecond } from "./generation/results.js";
export { LanguageModel } from "./languageModel.js";
export type { AsyncTokenizer, ChatOptions, TextStream } from "./languageModel.js";
export type { ModelInfo, Prompt } from "./backend.js";
export type { EmbedOptions } from "./embedding.js";
export type { OnnxRuntime } from "./engine/onnxDecoder.js";
export type { ConstraintOptions, GenerateOptions, LimitOptions, Processor, SamplingOptions } from "./generation/options.js";
export type { FinishReason, Generation, Piece, Stats } from "./generation/results.js";
export type { Progress } from "./open.js";
export type { Config, RopeScaling } from "./modelFile/config.js";
export type { GenerationDefaults } from "./modelFile/metadata.js";
export type { VerifyReport } from "./reports/verify.js";
export type { Score } from "./scoring.js";
export type { Message, TemplateOptions } from "./text/chatTemplate.js";
export type { AllowedSpecial } from "./text/tokenizer.js";
