"""What an import pulls in, and what it leaves alone; each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgelm_runtime

FORBIDDEN = ("torch", "onnx", "onnxscript", "onnx_ir", "transformers", "tokenizers", "safetensors")
PATHS = os.pathsep.join(path for path in sys.path if path)

USE_EVERYTHING = """
import sys
import edgelm, edgelm_runtime
lm = edgelm.load({model!r})
lm.generate("abc", max_new_tokens=3, temperature=1.0, logprobs=2)
list(lm.stream_chat([{{"role": "user", "content": "Hi"}}], max_new_tokens=2))
lm.score("some text"); lm.embed(["a", "b"]); lm.logits([1]); lm.close()
"""


def modules_after(code: str, **environment: str) -> set[str]:
    """Top-level and full names of the modules that a fresh interpreter has after `code`."""
    code += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": PATHS, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "from edgelm_runtime import *",
        USE_EVERYTHING.format(model=str(Path(__file__).parent / "data" / "tiny.onnx")),
    ],
)
def test_running_a_model_imports_no_framework(code: str) -> None:
    assert not modules_after(code) & set(FORBIDDEN)


def test_the_face_and_the_command_line_start_light() -> None:
    light = modules_after("import edgelm, edgelm.cli; edgelm.cli.group.list_commands(None)")
    assert not light & {*FORBIDDEN, "numpy", "onnxruntime", "tiktoken"}
    assert "edgelm_runtime" in modules_after("import edgelm; edgelm.load")


def test_extras_and_network_clients_are_imported_only_when_they_are_needed() -> None:
    assert not modules_after("import edgelm_runtime; edgelm_runtime.load") & {
        "jinja2",
        "llguidance",
        "requests",
        "urllib3",
    }


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_onnxruntime_sends_no_telemetry_unless_the_user_says_so(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    if before is not None:
        environment["ORT_DISABLE_TELEMETRY"] = before
    code = "import edgelm_runtime, os; edgelm_runtime.load; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.strip() == after


def test_everything_public_is_exported_and_documented() -> None:
    for name in edgelm_runtime.__all__:
        assert getattr(edgelm_runtime, name).__doc__, name
    assert (Path(edgelm_runtime.__file__).parent / "py.typed").exists()
