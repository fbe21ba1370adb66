"""Learning rate over the run: linear warm-up, then half a cosine down to a fraction of the peak.

Both are functions of progress, the share of the budget that is used up, so the same schedule serves a
budget in steps, in tokens or in minutes.
"""

from __future__ import annotations

import math


def learning_rate(progress: float, peak: float, warmup: float, final_fraction: float) -> float:
    """The rate at `progress` in [0, 1]; `warmup` is the share of the budget that the rise takes."""
    if progress < warmup:
        # Never quite zero, so that the first step counts.
        return peak * max(progress / warmup, 0.01)
    fall = min((progress - warmup) / max(1.0 - warmup, 1e-9), 1.0)
    return peak * (final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + math.cos(math.pi * fall)))
