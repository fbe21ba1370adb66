const MASK = (1n << 64n) - 1n;

/**
 * A number in [0, 1) that depends on (seed, sample) and position alone: the first draw of Philox 4x64-10 as numpy has
 * it, which raises the counter before it draws. (Salmon et al. 2011)
 */
export function uniform(seed: bigint, sample: number, position: number): number {
  let c0 = (BigInt(position) + 1n) & MASK, c1 = 0n, c2 = 0n, c3 = 0n, k0 = seed, k1 = BigInt(sample);
  for (let round = 0; round < 10; round++) {
    if (round) {
      k0 = (k0 + 0x9e3779b97f4a7c15n) & MASK;
      k1 = (k1 + 0xbb67ae8584caa73bn) & MASK;
    }
    const p0 = 0xd2e7470ee14c6c93n * c0, p1 = 0xca5a826395121157n * c2;
    [c0, c1, c2, c3] = [(p1 >> 64n) ^ c1 ^ k0, p1 & MASK, (p0 >> 64n) ^ c3 ^ k1, p0 & MASK];
  }
  return Number(c0 >> 11n) * 2 ** -53;
}

/** A seed of 63 bits, a new one each time. */
export function randomSeed(): bigint {
  const [word] = crypto.getRandomValues(new BigUint64Array(1));
  return word! >> 1n;
}
