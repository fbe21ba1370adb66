/**
 * Drafting by prompt lookup: text that repeats itself predicts its own next tokens.
 *
 * The draft is what followed the longest recent match of the last tokens, in the text or in a reference. The loop
 * checks a whole draft in one pass and keeps what it would have drawn anyway, so drafting changes speed and never
 * text. (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding)
 */
const LONGEST_MATCH = 16;
const SHORTEST_MATCH = 2;
const FIRST_DRAFT = 4;
const WASTE = 0.02;

/** Up to `most` tokens that followed the longest match of the end of `ids`; empty without one. */
export function draft(ids: Int32Array, most: number, reference: Int32Array): Int32Array {
  let [best, length] = longestMatch(ids.subarray(0, -1), ids);
  // A match whose continuation reaches the end goes on from its start: such text is taken to repeat itself again.
  let found = Int32Array.from({ length: most }, (_, i) => ids[best + (i % (ids.length - best))]!);
  if (reference.length) {
    const [other, longer] = longestMatch(reference, ids);
    if (longer > length) [found, length] = [reference.slice(other, other + most), longer];
  }
  return length >= SHORTEST_MATCH ? found : found.subarray(0, 0);
}

/** (position after the match, its length) of the longest, then last, match of the end of `tail` in `text`. */
function longestMatch(text: Int32Array, tail: Int32Array): [number, number] {
  const most = Math.min(LONGEST_MATCH, tail.length), last = tail.length - 1;
  let best = 0, length = 0;
  for (let end = text.length - 1; end >= 0 && length < most; end--) {
    if (text[end] !== tail[last]) continue;
    let common = 1;
    while (common < most && common <= end && text[end - common] === tail[last - common]) common++;
    if (common > length) [best, length] = [end + 1, common];
  }
  return [best, length];
}

/**
 * How many tokens to draft, so that drafting pays where text repeats itself and is all but free elsewhere.
 *
 * Costs and gains are counted in tokens that the model is fed: a rejected token wastes one, an accepted one saves a
 * pass. Drafts may waste `WASTE` of all that is fed anyway, and what drafting has saved, but no more than one pass
 * at a time. Within that, a draft that was accepted doubles the length, one that was rejected halves it.
 */
export class DraftLength {
  private length: number;
  private budget = 0;

  constructor(
    private readonly most: number,
    private readonly fixed = false,
  ) {
    this.length = fixed ? most : Math.min(FIRST_DRAFT, most);
  }

  /** Tokens to draft now. */
  next(): number {
    return this.fixed ? this.length : Math.min(this.length, Math.floor(this.budget));
  }

  /** Learn from a pass that would have cost `cost` tokens without the draft. */
  update(cost: number, drafted: number, accepted: number): void {
    if (this.fixed) return;
    this.budget = Math.min(this.budget + (WASTE + accepted) * cost - (drafted - accepted), cost);
    if (accepted) this.length = Math.min(2 * accepted, this.most);
    else if (drafted) this.length = Math.max(this.length >> 1, 1);
  }
}
