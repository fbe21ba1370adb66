import { OptionError } from "../errors.js";
import { shown } from "../validation.js";

/**
 * Lets text through up to the first stop string, which may span pieces.
 *
 * Text that could still become a stop string is held back until it is decided. The stop string that completes first
 * wins (of two that end together, the longer), so the result does not depend on how the text is split.
 */
export class StopStrings {
  private held = "";
  private readonly longest: number;

  constructor(private readonly stops: readonly string[]) {
    if (!Array.isArray(stops) || stops.some((stop) => typeof stop !== "string")) throw new OptionError(`stop is ${shown(stops)}`, "give a list of strings");
    if (stops.includes("")) throw new OptionError("a stop string is empty", "give text, or no stop string");
    this.longest = Math.max(0, ...stops.map((stop) => stop.length));
  }

  /** Text that may be shown now, and whether a stop string was met (which is not shown). */
  feed(text: string): [string, boolean] {
    const buffer = this.held + text;
    const start = this.firstStop(buffer);
    if (start >= 0) {
      this.held = "";
      return [buffer.slice(0, start), true];
    }
    const keep = this.undecided(buffer);
    this.held = buffer.slice(buffer.length - keep);
    return [buffer.slice(0, buffer.length - keep), false];
  }

  /** Text held back that did not become a stop string. */
  flush(): string {
    const { held } = this;
    this.held = "";
    return held;
  }

  /** Where the stop string begins that completes first; -1 without one. */
  private firstStop(buffer: string): number {
    let start = -1, end = Infinity;
    for (const stop of this.stops) {
      const at = buffer.indexOf(stop), behind = at + stop.length;
      if (at >= 0 && (behind < end || (behind === end && at < start))) [start, end] = [at, behind];
    }
    return start;
  }

  /** Length of the longest end of `buffer` that begins some stop string. */
  private undecided(buffer: string): number {
    for (let length = Math.min(this.longest - 1, buffer.length); length > 0; length--) {
      const end = buffer.slice(buffer.length - length);
      if (this.stops.some((stop) => stop.startsWith(end))) return length;
    }
    return 0;
  }
}
