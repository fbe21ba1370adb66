"""`edgelm batch`: every request answered once, whatever interrupts it; and the examples of BATCH.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from fakes import TINY

from edgelm.cli.batch_command import command
from edgelm_runtime import EdgelmError, OptionError, load
from edgelm_runtime.errors import OutputError
from edgelm_runtime.serving.batch_file import answer_lines

HERE = Path(__file__)
PAGE = next(
    (p for p in (HERE.parents[2] / "runtime/BATCH.md", HERE.parents[1] / "BATCH.md") if p.exists()), None
)

pytestmark = pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")


def _run(*words: Any, input: str | None = None) -> Done:
    found = CliRunner().invoke(command, list(map(str, words)), input=input)
    if isinstance(found.exception, EdgelmError):
        return Done(1, found.stderr + str(found.exception))
    return Done(found.exit_code, found.stderr)


class Done(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stderr: str


def _command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "edgelm", "batch", *map(str, words)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}


def _answers(path: Path) -> dict[int, dict[str, Any]]:
    """By the number of the request; each may have one answer."""
    found: dict[int, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        number = int(answer["answers"].partition("-")[0])
        assert number not in found
        found[number] = answer
    return found


def _write(path: Path, requests: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(request) for request in requests), encoding="utf-8")
    return path


def test_texts_options_and_errors(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    source = tmp_path / "in.jsonl"
    lines = [
        '{"prompt": "The ", "seed": 3, "temperature": 1.0, "id": 7}',
        json.dumps({"messages": messages, "max_new_tokens": 3}),
        "", "{", "[]", '{"prompt": "a", "messages": []}', '{"prompt": "a", "wrong": 1}', '{"prompt": "a", "top_p": 2}',
        '{"prompt": [1, 2, 3], "logprobs": 0}', '{"prompt": "a", "self": 1}',
    ]  # fmt: skip
    source.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    out = tmp_path / "out.jsonl"
    done = _run(TINY, source, "-o", out, "-n", 5)
    assert done.returncode == 1 and "6 requests failed" in done.stderr, done.stderr
    answers = _answers(out)
    assert sorted(answers) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    with load(TINY) as lm:
        wanted = lm.generate("The ", seed=3, temperature=1.0, max_new_tokens=5)
        assert answers[0]["text"] == wanted.text and answers[0]["token_ids"] == wanted.token_ids
        assert answers[0]["id"] == 7
        assert answers[0]["usage"] == {"prompt_tokens": wanted.stats.prompt_tokens, "completion_tokens": 5}
        assert answers[1]["text"] == lm.chat(messages, max_new_tokens=3).text
        assert answers[8]["logprobs"] == lm.generate([1, 2, 3], max_new_tokens=5, logprobs=0).logprobs
    for number, problem in {
        3: "not JSON",
        4: "no JSON object",
        5: "a prompt or messages",
        6: "wrong",
        7: "top_p",
    }.items():
        assert problem in answers[number]["error"]["message"]
    again = _run(TINY, source, "-o", out, "-n", 5)
    assert again.returncode == 0 and "9 of them by earlier runs" in again.stderr
    assert _answers(out) == answers


def test_a_kill_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    requests = [
        {"prompt": f"{number} ", "max_new_tokens": 60, "temperature": 1.0, "seed": number}
        for number in range(60)
    ]
    source, out = _write(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"
    for round_ in range(3):
        process = subprocess.Popen(
            _command(TINY, source, "-o", out, "--parallel", 2), env=_environment(), stderr=subprocess.DEVNULL
        )
        before, end = out.read_bytes().count(b"\n") if out.exists() else 0, time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            if out.exists() and out.read_bytes().count(b"\n") >= before + 5:
                break
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if round_ == 1:
            with out.open("ab") as file:
                file.write(b'{"answers": "59-')  # as a kill in the middle of a line leaves it
    assert 15 <= len(out.read_bytes().splitlines()) < 60
    done = _run(TINY, source, "-o", out, "--parallel", 2)
    assert done.returncode == 0, done.stderr
    answers = _answers(out)
    assert sorted(answers) == list(range(60))
    with load(TINY) as lm:
        for number, request in enumerate(requests):
            assert answers[number]["text"] == lm.generate(**request).text  # type: ignore[call-overload]


def test_parts_are_the_whole(tmp_path: Path) -> None:
    source = _write(tmp_path / "in.jsonl", [{"prompt": str(number)} for number in range(7)])
    numbers: list[int] = []
    for part in ("1/3", "2/3", "3/3"):
        out = tmp_path / f"{part[0]}.jsonl"
        assert _run(TINY, source, "-o", out, "-n", 2, "--part", part).returncode == 0
        numbers += _answers(out)
    assert sorted(numbers) == list(range(7))
    for wrong in ("0/3", "4/3", "x", "1/0", "1"):
        assert "is not a part such as 1/4" in _run(TINY, source, "-o", out, "--part", wrong).stderr


def test_answers_to_something_else_stay(tmp_path: Path) -> None:
    source, out = _write(tmp_path / "in.jsonl", [{"prompt": "a"}]), tmp_path / "out.jsonl"
    assert _run(TINY, source, "-o", out, "-n", 2).returncode == 0
    content = out.read_bytes()
    for change in (["-n", 3], ["-n", 2, "--seed", 1]):
        done = _run(TINY, source, "-o", out, *change)
        assert done.returncode == 1 and "answers another request" in done.stderr
    _write(source, [{"prompt": "b"}])
    assert "answers another request" in _run(TINY, source, "-o", out, "-n", 2).stderr
    assert out.read_bytes() == content
    out.write_text("notes of my own\n")
    assert "is no answer of edgelm batch" in _run(TINY, source, "-o", out).stderr
    assert out.read_text() == "notes of my own\n"
    assert "cannot read" in _run(TINY, tmp_path / "none.jsonl", "-o", out).stderr
    assert "cannot write" in _run(TINY, source, "-o", tmp_path / "no" / "folder.jsonl").stderr


def test_standard_input(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert _run(TINY, "-", "-o", out, "-n", 2, input='{"prompt": "a"}\n').returncode == 0
    assert list(_answers(out)) == [0]


def test_two_runs_into_one_file(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    out = tmp_path / "out.jsonl"

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(OutputError, match="another run is writing"):
            answer_lines([b"{}"], out, lambda _: {})
        return {}

    assert answer_lines([b"{}"], out, answer).requests == 1
    with pytest.raises(OptionError, match="answers another request"):
        answer_lines([b'{"a": 1}'], out, answer)


def test_lines_of_openai(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("edgelm_server")
    chat = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    lines = [
        {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**chat, "max_tokens": 3},
        },
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "The ", "n": 2}},
        {
            "custom_id": "c",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**chat, "temperature": -1},
        },
        {"custom_id": "d", "method": "POST", "url": "/v1/other", "body": {}},
    ]
    out = tmp_path / "out.jsonl"
    done = _run(TINY, _write(tmp_path / "in.jsonl", lines), "-o", out, "-n", 4)
    assert "2 requests failed" in done.stderr, done.stderr
    answers = _answers(out)
    assert [answers[number]["custom_id"] for number in range(4)] == ["a", "b", "c", "d"]
    with load(TINY) as lm:
        wanted = lm.chat(chat["messages"], max_new_tokens=3).text  # type: ignore[arg-type]
        assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == wanted
        texts = [choice["text"] for choice in answers[1]["response"]["body"]["choices"]]
        assert len(texts) == 2 and texts[0] == lm.generate("The ", max_new_tokens=4, temperature=0).text
    assert answers[0]["response"]["status_code"] == 200 and answers[0]["error"] is None
    assert answers[2]["response"]["status_code"] == 400 and "temperature" in answers[2]["error"]["message"]
    assert "/v1/other" in answers[3]["error"]["message"]


def _example(containing: str) -> str:
    if PAGE is None:
        pytest.skip("the page is not here")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if containing in block)
    return str(found)


@pytest.fixture
def beside_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(TINY, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _check(rows: list[Any]) -> None:
    with load(TINY) as lm:
        for row in rows:
            assert row["text"] == lm.generate(row["prompt"], max_new_tokens=20, seed=1).text
            assert row["bits_per_byte"] == pytest.approx(lm.score(row["prompt"]).bits_per_byte)
    assert len(rows) == 2


@pytest.mark.package("ray[data]")
def test_ray(beside_a_model: Path) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    code = _example("import ray").replace('"model.onnx"', repr(str(beside_a_model / "model.onnx")))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}},
    )
    try:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, str(PAGE), "exec"), names)
        _check(names["rows"])
    finally:
        ray.shutdown()


@pytest.mark.package("pandas")
def test_the_function_for_spark(beside_a_model: Path) -> None:
    pandas = pytest.importorskip("pandas")
    names: dict[str, Any] = {}
    exec(compile(_example("def write("), str(PAGE), "exec"), names)
    frames = [pandas.DataFrame({"prompt": [prompt]}) for prompt in ("import os", "def main(")]
    written = list(names["write"](iter(frames)))
    assert [list(frame.columns) for frame in written] == [["prompt", "text", "bits_per_byte"]] * 2
    _check([row for frame in written for row in frame.to_dict("records")])


@pytest.mark.package("pyspark")
def test_spark(beside_a_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("pandas")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    monkeypatch.setenv(
        "PYSPARK_PYTHON", sys.executable
    )  # its workers would take whatever python3 is on the path
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    names: dict[str, Any] = {}
    for part in ("def write(", "pyspark"):
        exec(compile(_example(part), str(PAGE), "exec"), names)
    _check([row.asDict() for row in names["rows"]])
    names["spark"].stop()
