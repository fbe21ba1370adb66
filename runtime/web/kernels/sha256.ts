// SHA-256 (FIPS 180-4), in pieces: browsers hash only what lies in memory as a whole, and nothing without https.
const K: usize = memory.data<u32>([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
  0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
  0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
  0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
  0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
  0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2]);
const W: usize = memory.data(256);

/** Take in `blocks` blocks of 64 bytes at `data`. `state` are eight uint32. */
export function sha256(state: usize, data: usize, blocks: usize): void {
  for (; blocks; blocks--, data += 64) {
    for (let i: usize = 0; i < 64; i += 4) store<u32>(W + i, bswap(load<u32>(data + i)));
    for (let i: usize = 64; i < 256; i += 4) {
      const a = load<u32>(W + i - 60), b = load<u32>(W + i - 8);
      const s0 = rotr(a, 7) ^ rotr(a, 18) ^ (a >> 3), s1 = rotr(b, 17) ^ rotr(b, 19) ^ (b >> 10);
      store<u32>(W + i, load<u32>(W + i - 64) + s0 + load<u32>(W + i - 28) + s1);
    }
    let a = load<u32>(state), b = load<u32>(state, 4), c = load<u32>(state, 8), d = load<u32>(state, 12);
    let e = load<u32>(state, 16), f = load<u32>(state, 20), g = load<u32>(state, 24), h = load<u32>(state, 28);
    for (let i: usize = 0; i < 256; i += 4) {
      const t = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + load<u32>(K + i) + load<u32>(W + i);
      const u = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g; g = f; f = e; e = d + t; d = c; c = b; b = a; a = t + u;
    }
    store<u32>(state, load<u32>(state) + a); store<u32>(state, load<u32>(state, 4) + b, 4);
    store<u32>(state, load<u32>(state, 8) + c, 8); store<u32>(state, load<u32>(state, 12) + d, 12);
    store<u32>(state, load<u32>(state, 16) + e, 16); store<u32>(state, load<u32>(state, 20) + f, 20);
    store<u32>(state, load<u32>(state, 24) + g, 24); store<u32>(state, load<u32>(state, 28) + h, 28);
  }
}
