"""A source's configuration, read field by field: a wrong type or value is named, never guessed around."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgelm.config import Activation
from edgelm_runtime.errors import CheckpointError

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu", "swish": "silu",
}  # fmt: skip


class Settings:
    """config.json with typed access. Raises CheckpointError that names the field."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def whole(self, name: str, usual: int | None = None) -> int:
        """A whole number from 1; `usual` where the field is absent or null."""
        value = self.values.get(name)
        if value is None and usual is not None:
            return usual
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self.source}: {name} is {value!r}", "it must be a whole number from 1")
        return value

    def number(self, name: str, usual: float) -> float:
        """A finite number; `usual` where the field is absent or null."""
        value = self.values.get(name)
        if value is None:
            return usual
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise CheckpointError(f"{self.source}: {name} is {value!r}", "it must be a number")
        return float(value)

    def activation(self, name: str, usual: str) -> Activation:
        """An activation, in this project's name for it."""
        value = self.values.get(name) or usual
        if value not in ACTIVATIONS:
            raise self.refused(name)
        return ACTIVATIONS[value]

    def refused(self, name: str) -> CheckpointError:
        """The error for a setting that cannot be expressed."""
        return CheckpointError(f"{self.source}: {name} {self.values.get(name)!r} cannot be imported")

    def require(self, **usual: object) -> None:
        """Refuse every field that is there with another value than the usual one."""
        for name, value in usual.items():
            if self.values.get(name) not in (None, value):
                raise self.refused(name)
