/** Cosines and sines of rotary position embedding, as `edgelm/model/position.py` defines them. */
import type { Config, RopeScaling } from "../modelFile/config.js";

/** Angles per position of each feature pair, and what cosines and sines are multiplied by. */
export interface Rotation {
  frequencies: Float64Array;
  magnitude: number;
}

/** How a full or local layer rotates; null for models without rotation. */
export function rotationOf(config: Config, local: boolean): Rotation | null {
  if (config.position !== "rotary") return null;
  const ownBase = local && config.local_rope_theta > 0;
  const base = ownBase ? config.local_rope_theta : config.rope_theta;
  const frequencies = Float64Array.from({ length: config.rotary_dim / 2 }, (_, i) => base ** -((2 * i) / config.rotary_dim));
  if (!config.rope_scaling || ownBase) return { frequencies, magnitude: 1 };
  return scaled(frequencies, config.rope_scaling, base);
}

/** Write the cosines and sines of positions from `start` to `end` at float indices `cos` and `sin`. */
export function fillRotation(f32: Float32Array, cos: number, sin: number, { frequencies, magnitude }: Rotation, start: number, end: number): void {
  for (let position = start; position < end; position++) {
    for (const frequency of frequencies) {
      f32[cos++] = Math.cos(position * frequency) * magnitude;
      f32[sin++] = Math.sin(position * frequency) * magnitude;
    }
  }
}

const clamped = (value: number): number => Math.min(Math.max(value, 0), 1);

function scaled(frequencies: Float64Array, scaling: RopeScaling, base: number): Rotation {
  const { factor, original_context: context } = scaling;
  if (scaling.kind === "linear") return { frequencies: frequencies.map((f) => f / factor), magnitude: 1 };
  if (scaling.kind === "divisors") return { frequencies: frequencies.map((f, i) => f / scaling.divisors[i]!), magnitude: scaling.attention_factor ?? 1 };
  if (scaling.kind === "llama3") {
    // Turns over the original context decide: few turns are slowed down, many are kept.
    const keep = (f: number): number => clamped(((context * f) / (2 * Math.PI) - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor));
    return { frequencies: frequencies.map((f) => f * (keep(f) + (1 - keep(f)) / factor)), magnitude: 1 };
  }
  const pairs = frequencies.length;
  const pairOf = (turns: number): number => (pairs * Math.log(context / (turns * 2 * Math.PI))) / Math.log(base);
  const low = Math.max(Math.floor(pairOf(scaling.beta_fast)), 0), high = Math.min(Math.ceil(pairOf(scaling.beta_slow)), 2 * pairs - 1);
  const magnitude = scaling.attention_factor ?? (factor > 1 ? 0.1 * Math.log(factor) + 1 : 1);
  const ramp = (i: number): number => clamped((i - low) / Math.max(high - low, 1e-3));
  return { frequencies: frequencies.map((f, i) => f * (1 - ramp(i)) + (f / factor) * ramp(i)), magnitude };
}
