"""What of a source the imported model does not have, said in a warning: leaving it out may change what it writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable


class DroppedSettingWarning(UserWarning):
    """A setting of the source that the imported model does not have."""


def dropped(source: str, settings: Iterable[str]) -> None:
    """Warn of settings that are left out, if there are any."""
    if settings := list(settings):
        warnings.warn(f"{source}: left out {'; '.join(settings)}", DroppedSettingWarning, stacklevel=2)


def shortened(longest: int, original: int, source: str) -> int:
    """The context `original` of a model that LongRoPE stretches to `longest`, which is said where it is less."""
    if original < longest:
        dropped(
            source,
            [f"the context beyond {original} of {longest} tokens, where LongRoPE changes its rotary table"],
        )
    return original
