"""What is derived from declarations is what the declarations say."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgelm_runtime
from edgelm_runtime.generation.options import OPTIONS, Sampling
from tests import regenerate


@pytest.mark.parametrize(
    "path", [regenerate.KEYWORDS, regenerate.GUIDE, regenerate.HELP, regenerate.ARCHITECTURE], ids=str
)
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == regenerate.pages()[path], "run: python tests/regenerate.py"


def test_the_typed_options_are_those_that_are_accepted() -> None:
    assert set(edgelm_runtime.Options.__annotations__) == set(OPTIONS)


def test_defaults_are_values_that_the_options_take() -> None:
    for about in OPTIONS.values():
        about.kind.check(about.name, about.default)
    assert Sampling().temperature == OPTIONS["temperature"].default
