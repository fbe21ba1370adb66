"""What one test leaves behind must not decide another."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _denormal_numbers() -> Iterator[None]:
    """Training flushes them to zero, for the whole process; Hypothesis refuses to draw floats there."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
    yield
