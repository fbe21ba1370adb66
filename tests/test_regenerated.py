"""What is derived from declarations is what the declarations say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import edgelm_runtime
from edgelm_runtime.generation.options import OPTIONS, Sampling

ROOT = Path(__file__).parents[1]


def test_generated_files_are_current() -> None:
    """In a process of its own: click keeps a command's help option as the first call of the command made it."""
    command = [sys.executable, "-m", "tests.regenerate", "--check"]
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "export", "runtime"))
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"run: python tests/regenerate.py\n{done.stderr}"


def test_the_typed_options_are_those_that_are_accepted() -> None:
    assert set(edgelm_runtime.Options.__annotations__) == set(OPTIONS)


def test_defaults_are_values_that_the_options_take() -> None:
    for about in OPTIONS.values():
        about.kind.check(about.name, about.default)
    assert Sampling().temperature == OPTIONS["temperature"].default
