"""The script that checks a GPU: without one it says so, and what it does there works on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from edgelm_export import export_checkpoint
from tests.small_models import small_checkpoint

SCRIPT = Path(__file__).parent / "benchmarks" / "cuda.py"


def _run(*arguments: object) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="there may be a GPU"
)
def test_without_a_gpu_it_skips_in_one_line() -> None:
    assert _run() == (0, ["skipped, nothing was checked: this onnxruntime has no provider 'cuda'"])


def test_all_of_it_works_on_the_cpu(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    export_checkpoint(small_checkpoint(context_length=80), good, kv_cache=True, target="cuda")
    code, lines = _run("--provider", "cpu", "--rounds", 1, "--model", good)
    assert code == 0 and not any("FAILED" in line for line in lines)
    found = "\n".join(lines)
    for part in (
        "ok: verify: ", "ok: whole windows", "ok: from the cache in 40 pieces", "ok: a batch of rows",
        "ok: tokens from the cache and without, lookup", "4 TensorScatter", "CPU, cached, 64",
    ):  # fmt: skip
        assert part in found, part
    # One bit of a weight: the golden vectors fail, and the rest is still looked at.
    data = bytearray(good.read_bytes())
    data[len(data) // 4] ^= 1
    bad.write_bytes(data)
    code, lines = _run("--provider", "cpu", "--rounds", 1, "--model", bad)
    assert code == 1 and next(line for line in lines if "FAILED" in line).startswith("  FAILED: replayed: ")
