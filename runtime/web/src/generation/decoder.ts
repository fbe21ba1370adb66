/** What the generation loop needs of a model. */
export interface Decoder {
  readonly contextLength: number;
  readonly vocabSize: number;
  /** What a pass costs, in tokens that it is fed. */
  readonly passCost: number;
  /** Logits (vocab) at each of the last `count` positions of `ids` (1 to contextLength); copies, or views until the next call. */
  logits(ids: Int32Array, count: number): Promise<Float32Array[]>;
}
