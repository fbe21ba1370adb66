/** Byte-pair merging as tiktoken does it: the neighbours of the lowest rank join until none are left to join. */

const NONE = 0x7fffffff;
/** From this many bytes on, the next pair is found in a heap and not by looking at all. */
const LONG = 128;

/** Ranks of the parts of `bytes` (a string of characters 0 to 255), given the rank of each token. */
export function mergeBytes(bytes: string, ranks: ReadonlyMap<string, number>): number[] {
  const whole = ranks.get(bytes);
  if (whole !== undefined) return [whole];
  return bytes.length < LONG ? mergeShort(bytes, ranks) : mergeLong(bytes, ranks);
}

function mergeShort(bytes: string, ranks: ReadonlyMap<string, number>): number[] {
  const starts: number[] = [], pairs: number[] = [];
  const rank = (from: number, to: number): number => ranks.get(bytes.slice(from, to)) ?? NONE;
  for (let i = 0; i <= bytes.length; i++) starts.push(i);
  for (let i = 0; i + 2 <= bytes.length; i++) pairs.push(rank(i, i + 2));
  for (;;) {
    let best = NONE, at = -1;
    for (let i = 0; i < pairs.length; i++) if (pairs[i]! < best) [best, at] = [pairs[i]!, i];
    if (at < 0) break;
    starts.splice(at + 1, 1);
    pairs.splice(at, 1);
    if (at < pairs.length) pairs[at] = rank(starts[at]!, starts[at + 2]!);
    if (at > 0) pairs[at - 1] = rank(starts[at - 1]!, starts[at + 1]!);
  }
  const found: number[] = [];
  for (let i = 0; i + 1 < starts.length; i++) found.push(ranks.get(bytes.slice(starts[i], starts[i + 1]))!);
  return found;
}

/** The same with parts in a linked list and pairs in a heap, by rank and then by place. */
function mergeLong(bytes: string, ranks: ReadonlyMap<string, number>): number[] {
  const n = bytes.length;
  const next = new Int32Array(n + 1), before = new Int32Array(n + 1), pair = new Int32Array(n + 1).fill(NONE);
  const heap = new Heap();
  const look = (start: number): void => {
    const middle = next[start]!;
    pair[start] = middle < n ? (ranks.get(bytes.slice(start, next[middle])) ?? NONE) : NONE;
    if (pair[start] !== NONE) heap.push(pair[start]! * (n + 1) + start);
  };
  for (let i = 0; i <= n; i++) [next[i], before[i]] = [i + 1, i - 1];
  for (let i = 0; i < n; i++) look(i);
  for (let top = heap.pop(); top !== undefined; top = heap.pop()) {
    const start = top % (n + 1);
    if (pair[start] !== Math.floor(top / (n + 1))) continue; // it has changed since
    const middle = next[start]!, end = next[middle]!;
    next[start] = end;
    before[end] = start;
    pair[middle] = NONE;
    look(start);
    if (before[start]! >= 0) look(before[start]!);
  }
  const found: number[] = [];
  for (let i = 0; i < n; i = next[i]!) found.push(ranks.get(bytes.slice(i, next[i]))!);
  return found;
}

/** Numbers, the smallest first. */
class Heap {
  private readonly items: number[] = [];

  push(item: number): void {
    const { items } = this;
    let at = items.push(item) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (items[parent]! <= item) break;
      items[at] = items[parent]!;
      at = parent;
    }
    items[at] = item;
  }

  pop(): number | undefined {
    const { items } = this;
    const top = items[0], last = items.pop();
    if (!items.length || last === undefined) return top;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= items.length) break;
      if (child + 1 < items.length && items[child + 1]! < items[child]!) child++;
      if (items[child]! >= last) break;
      items[at] = items[child]!;
      at = child;
    }
    items[at] = last;
    return top;
  }
}
