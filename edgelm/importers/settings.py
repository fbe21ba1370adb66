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
# Whole numbers become sizes of arrays: beyond this they are damage, and must not overflow further on.
LARGEST = 1 << 48


class Settings:
    """A configuration with typed access. Raises CheckpointError that names the field."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source

    def whole(self, name: str, usual: int | None = None) -> int:
        """A whole number from 1; `usual` where the field is absent or null."""
        value = self.values.get(name)
        if value is None and usual is not None:
            return usual
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise self.wrong(name, "it must be a whole number from 1")
        return value

    def number(self, name: str, usual: float | None = None) -> float:
        """A finite number; `usual` where the field is absent or null."""
        value = self.values.get(name)
        if value is None and usual is not None:
            return usual
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e300:
            raise self.wrong(name, "it must be a number")
        return float(value)

    def positive(self, name: str, usual: float | None = None) -> float:
        """A number above 0; `usual` where the field is absent or null."""
        value = self.number(name, usual)
        if not value > 0 or not math.isfinite(value):
            raise self.wrong(name, "it must be a number above 0")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where the field is absent or null."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "it must be true or false")
        return bool(value)

    def table(self, name: str) -> Mapping[str, Any]:
        """A JSON object; an empty one where the field is absent or null."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(name, "it must be an object")
        return value or {}

    def inner(self, values: Mapping[str, Any]) -> Settings:
        """Other values of the same source."""
        return Settings(values, self.source)

    def activation(self, name: str, usual: str | None = None) -> Activation:
        """An activation, in this project's name for it."""
        value = self.values.get(name) or usual
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.refused(name)
        return ACTIVATIONS[value]

    def refused(self, name: str) -> CheckpointError:
        """The error for a setting that cannot be expressed."""
        return CheckpointError(f"{self.source}: {name} {self._shown(name)} cannot be imported")

    def wrong(self, name: str, remedy: str) -> CheckpointError:
        """The error for a value of the wrong kind."""
        return CheckpointError(f"{self.source}: {name} is {self._shown(name)}", remedy)

    def require(self, **usual: object) -> None:
        """Refuse every field that is there with another value than the usual one."""
        for name, value in usual.items():
            if self.values.get(name) not in (None, value):
                raise self.refused(name)

    def _shown(self, name: str) -> str:
        text = repr(self.values.get(name))
        return text if len(text) <= 80 else text[:77] + "..."
