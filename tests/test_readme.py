"""The README's commands and examples, run as they stand and in their order, in a folder of their own.

Lines that install are left out: they change the environment that runs the test, and CI runs them to the letter.
The folder `texts`, which the README asks the reader for, is filled with the project's own documents.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL_AND = re.compile(r"^    pip install .*? && (edgelm .*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with texts in it, and an `edgelm` command that is this checkout."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "texts").mkdir()
    for source in [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), ROOT / "LICENSE"]:
        shutil.copy(source, folder / "texts" / f"{source.parent.name}-{source.name}.txt")
    (folder / "bin").mkdir()
    command = folder / "bin" / "edgelm"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edgelm "$@"\n')
    command.chmod(0o755)
    return folder


def environment(folder: Path) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "export"), str(ROOT / "runtime")]
    python = Path(sys.executable).parent
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(folder / "bin"), str(python), os.environ["PATH"]]),
    }


def run(folder: Path, arguments: list[str]) -> str:
    done = subprocess.run(
        arguments, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_examples_run_in_their_order(folder: Path) -> None:
    examples = BLOCK.findall((ROOT / "README.md").read_text())
    assert {language for language, _ in examples} == {"sh", "python"}
    for language, code in examples:
        if language == "python":
            output = run(folder, [sys.executable, "-c", code])
        else:
            output = run(folder, ["bash", "-euc", code])
        assert output.strip(), f"no output of:\n{code}"


def test_the_first_command_is_the_whole_path(folder: Path) -> None:
    command = INSTALL_AND.findall((ROOT / "README.md").read_text())[0]
    assert command == "edgelm demo"
    output = run(folder, command.split())
    assert "def " in output
