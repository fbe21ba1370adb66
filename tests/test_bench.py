"""`edgelm bench` on small files: what is measured, what is left out, and what is refused. No time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgelm.cli.bench_command import command
from edgelm_runtime.errors import EdgelmError, ModelFileError, OptionError
from edgelm_runtime.reports.benchmark import benchmark, parse_lengths

DATA = Path(__file__).parent / "runtime" / "data"
TINY, IDS = DATA / "tiny.onnx", DATA / "ids.onnx"
QUICK = ["--rounds", "1", "--steps", "3", "--prefill", "4,8,100000", "--contexts", "5", "--threads", "1"]


def test_two_files_are_measured_alike() -> None:
    result = CliRunner().invoke(command, [str(TINY), "--vs", str(IDS), "--json", *QUICK])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert [one["path"] for one in figures] == [str(TINY), str(IDS)]
    for one in figures:
        assert one["decode"] == "recompute" and one["provider"] == "CPU"
        assert list(one["prefill"]) == ["4", "8"], "a length beyond the context is left out"
        assert list(one["step"]) == list(one["python"]) == ["5"]
        assert 0 < one["python"]["5"] < one["step"]["5"]
        assert 0 < one["load"] < one["first_token"]
        assert one["file_bytes"] == Path(one["path"]).stat().st_size
        assert one["peak_bytes"] is None or one["peak_bytes"] > one["file_bytes"]


def test_table_has_a_column_for_each_file_and_their_ratio() -> None:
    result = CliRunner().invoke(command, [str(TINY), "--vs", str(IDS), *QUICK])
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["tiny.onnx", "ids.onnx", "ratio"]
    ratio = IDS.stat().st_size / TINY.stat().st_size
    assert next(line for line in lines if line.startswith("file")).endswith(f"{ratio:.2f} x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"contexts": (0,)}, "a length in contexts is 0"),
        ({"decode": "cached"}, "exported without a cache"),
        ({"decode": "fast"}, "decode is 'fast'"),
    ],
)
def test_what_cannot_be_measured(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        benchmark([TINY], **options)  # type: ignore[arg-type]


def test_file_that_is_none() -> None:
    with pytest.raises(EdgelmError) as caught:
        benchmark([DATA / "missing.onnx"])
    assert isinstance(caught.value, ModelFileError) and "missing.onnx" in str(caught.value)


def test_lengths() -> None:
    assert parse_lengths("32, 128,512") == (32, 128, 512)
    with pytest.raises(OptionError, match="not a list of lengths"):
        parse_lengths("32 or so")


def test_peak_memory_is_of_this_process_and_grows_with_what_is_held() -> None:
    held = bytearray(b"\1") * 300_000_000  # the measured process is started by a larger one
    code = (
        "from edgelm_runtime.reports.benchmark import peak_memory; a = peak_memory(); b = bytearray(b'x') * 40_000_000;"
        "print(a or 0, peak_memory() or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    if not before:
        pytest.skip("this system does not tell")
    assert before + 30_000_000 < after < len(held)
