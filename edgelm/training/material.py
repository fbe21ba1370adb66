"""What a run learns from and is measured on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgelm.data.batches import Examples, HeldOut


@dataclass(frozen=True)
class Material:
    """Training and held-out rows."""

    train: Examples
    held_out: HeldOut
    fingerprint: str
    """Changes with the data."""
    about: dict[str, Any]
    """What a model card says of the data."""
