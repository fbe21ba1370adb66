"""The command line whatever it is given: words, streams, encodings, and damage of every kind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import CHAT, IDS, TINY

import edgelm.cli
from edgelm.cli import arguments

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `edgelm ARGUMENTS` with bytes on standard input: exit status, output, errors."""
    import io

    def run(*words: object, given: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edgelm", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        status = 0
        try:
            edgelm.cli.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return run


def program(*words: object, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """The same in a process of its own, with `settings` of subprocess.run."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        **settings.pop("env", {}),
    }
    command = [sys.executable, "-m", "edgelm", *map(str, words)]
    settings = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 120, **settings}
    if "stdout" in settings or "stderr" in settings:
        settings.pop("capture_output")
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    return subprocess.run(command, env=environment, check=False, **settings)


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        (["--", "-- create_table my_table"], "-- create_table my_table"),
        (["--", "--my_flag --debug x_y"], "--my_flag --debug x_y"),
        (["--", "--debug"], "--debug"),
        (["-p", "--debug"], "--debug"),
        (["-p", "-- a_b"], "-- a_b"),
        (["--prompt", "--top_k=x_y"], "--top_k=x_y"),
        (["--prompt=--a_b=c_d"], "--a_b=c_d"),
        (["a_b --c_d"], "a_b --c_d"),
    ],
)
def test_texts_are_taken_as_they_are(run: Run, words: list[str], prompt: str) -> None:
    status, out, _ = run("run", TINY, "-n", 1, "--echo", "--json", *words)
    assert status == 0 and json.loads(out)["text"].startswith(prompt)


def test_only_names_of_options_are_rewritten(run: Run) -> None:
    pytest.importorskip("llguidance")
    status, out, _ = run("run", TINY, "x = ", "--max_new_tokens", 30, "--choice", "--yes_please")
    assert (status, out.strip()) == (0, "--yes_please")
    assert run("run", TINY, "x", "--max_new_tokens=0")[0] == 0
    assert run("run", TINY, "x", "--max-new_tokens=0", "--debug")[0] == 0


def test_debug_shows_the_traceback_wherever_it_stands() -> None:
    for words in (["--debug", "run", TINY, "x", "-t", "-1"], ["run", TINY, "x", "-t", "-1", "--debug"]):
        assert b"Traceback" in program(*words).stderr
    assert b"Traceback" not in program("run", TINY, "-t", "-1", "--", "--debug").stderr


def test_words_that_are_models(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.ONNX").write_bytes(TINY.read_bytes())
    Path("plain").write_bytes(TINY.read_bytes())
    for name in ("m.ONNX", "plain", str(tmp_path / "m.ONNX")):
        assert run("run", name, "-n", 2, given=b"the")[0] == 0
    Path("model.gguf").touch()
    Path("weights.bin").write_bytes(b"GGUF\x03\0\0\0")
    Path("model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    Path("folder").mkdir()
    Path("notes").write_text("hello")
    for name in ("model.gguf", "weights.bin", "model.safetensors", "folder"):
        for command in (
            ["run", name],
            ["run", name, "hello"],
            ["chat", name],
            ["score", name, "-"],
            ["embed", name],
        ):
            status, out, err = run(*command, given=b"the")
            assert status == 1 and out == "" and f"edgelm export {name} -o model.onnx" in err
    assert "notes is no model file; a prompt is given by" in run("run", "notes")[2]
    assert run("run", "-f", "notes", "-n", 1)[0] == 0
    assert "nowhere.gguf; check the path" in run("run", "nowhere.gguf")[2]
    for command in ("run", "chat", "score", "embed"):
        words = [command, "", *(["x"] if command != "chat" else [])]
        assert "the name of the model is empty" in run(*words, given=b"the")[2]


def test_home_folders(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.onnx").write_bytes(TINY.read_bytes())
    (tmp_path / "a.txt").write_text("the thing\n")
    assert run("run", "~/m.onnx", "-f", "~/a.txt", "-n", 1)[0] == 0
    assert run("embed", "~/m.onnx", "~/a.txt", "--output=~/v.npy")[0] == 0
    assert run("chat", "~/m.onnx", "-n", 1, given=b"Hi\n/save ~/talk.json\n")[0] == 0
    assert run("info", "~/m.onnx")[0] == 0 and run("score", "~/m.onnx", "~/a.txt")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"m.onnx", "a.txt", "v.npy", "talk.json"}


def test_a_dash_is_standard_input(run: Run, tmp_path: Path) -> None:
    for words in (["run", TINY, "-"], ["run", TINY, "-f", "-"], ["run", TINY]):
        out = run(*words, "-n", 1, "--echo", "--json", given=b"import")[1]
        assert json.loads(out)["text"].startswith("import")
    assert run("run", "-", "-n", 1, given=b"import")[0] == 0  # with the bundled model
    for words in (
        ["score", TINY, "-", "-"],
        ["embed", TINY, "-", "-"],
        ["run", TINY, "-", "--json-schema", "-"],
    ):
        assert "standard input (-) is given twice" in run(*words, given=b"the thing")[2]


def test_texts_are_no_paths(run: Run) -> None:
    for text in ("a" * 300, "a/" * 3000, "~nobody/x", "", "\0", "x\n.onnx"):
        assert run("embed", TINY, text)[0] == 0, text
        if text:
            assert run("run", TINY, text, "-n", 1)[0] == 0, text
    assert run("run", "a" * 5000, "-n", 1)[0] == 0
    for words in (
        ["score", TINY, "a" * 300],
        ["score", TINY, "\0"],
        ["run", "a" * 300 + ".onnx"],
        ["run", "\0.onnx"],
    ):
        status, _, err = run(*words)
        assert status == 1 and err.count("\n") == 1
    assert arguments.is_model("x.gguf") and not arguments.is_model("a long text that ends in\n.onnx")


def test_more_threads_than_processors_are_bounded() -> None:
    done = program("run", TINY, "x", "-n", "1", "--threads", 99999)
    assert done.returncode == 0


@pytest.mark.parametrize("form", ["file", "standard input"])
def test_byte_order_marks_line_ends_and_encodings(run: Run, tmp_path: Path, form: str) -> None:
    """The same text, however it is written down, to every command that reads one."""
    plain = "the thing\nin the string\u20ac\n"
    forms = {
        "utf-8": [plain.encode(), b"\xef\xbb\xbf" + plain.encode(), plain.replace("\n", "\r\n").encode()],
        "cp1252": [plain.encode("cp1252")],
        "utf-16": [plain.encode("utf-16"), plain.encode("utf-16-be")[:0] + plain.encode("utf-16")],
    }
    seen: dict[str, set[str]] = {}
    for encoding, contents in forms.items():
        for content in contents:
            path = tmp_path / "text.txt"
            path.write_bytes(content)
            given = {"given": b"" if form == "file" else content}
            source = path if form == "file" else "-"
            options = ("--encoding", encoding)
            seen.setdefault("score", set()).add(
                run("score", TINY, source, *options, **given)[1].partition(": ")[2]
            )
            seen.setdefault("embed", set()).add(run("embed", TINY, source, *options, **given)[1])
            out = run("run", TINY, "-f", source, "-n", 1, "--echo", "--json", *options, **given)[1]
            seen.setdefault("run", set()).add(json.loads(out)["text"])
    assert all(len(outputs) == 1 for outputs in seen.values()), seen
    assert seen["run"].pop().startswith(plain)


def test_bytes_that_are_no_text_are_named_or_replaced(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"the thing \xff in")
    for words in (
        ["score", TINY, path],
        ["embed", TINY, path],
        ["run", TINY, "-f", path],
        ["run", TINY, "-"],
    ):
        status, out, err = run(*words, given=path.read_bytes())
        assert status == 1 and out == "" and "byte 0xff at offset 10" in err and err.count("\n") == 1
        assert run(*words, "--decode-errors", "replace", given=path.read_bytes())[0] == 0
    for name in ("nonsense", "rot13", "hex", "", "\0", "undefined"):
        status, _, err = run("score", TINY, path, "--encoding", name)
        assert status == 1 and err.count("\n") == 1, name


def test_a_template_option_reaches_the_template(run: Run) -> None:
    pytest.importorskip("jinja2")
    status, _, err = run("chat", CHAT, "--template-option", "enable_thinking=false", given=b"Hi\n")
    assert status == 1 and "takes no 'enable_thinking'" in err
    assert "is not NAME=VALUE" in run("chat", CHAT, "--template-option", "x")[2]


CLOSED = "closed"
STREAMS = [None, "full", "gone", CLOSED]
COMMANDS: list[list[object]] = [
    ["run", TINY, "the \U0001f600 \u20ac", "-n", 4, "--echo", "--stats"],
    ["run", TINY, "x", "-n", 4, "--json"],
    ["run", TINY, "-n", 4],
    ["chat", CHAT, "-n", 4],
    ["score", TINY, TINY.parent / "../test_commands.py"],
    ["embed", TINY, "the \U0001f600"],
    ["info", TINY],
    ["info", TINY, "--json"],
    ["run", TINY, "x", "-t", -1],
    ["--help"],
    ["nonsense"],
]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("seed", range(11))
def test_streams_in_any_state(seed: int) -> None:
    """Closed, full, broken, without UTF-8: one line or success, and never a traceback."""
    draw = random.Random(seed)
    words = COMMANDS[seed % len(COMMANDS)]
    states = [draw.choice([None, CLOSED]), draw.choice(STREAMS), draw.choice(STREAMS)]
    encoding = draw.choice(["utf-8", "cp1252", "ascii", "utf-16", "latin-1:strict"])
    settings: dict[str, Any] = {}
    files = []
    for name, state in zip(("stdin", "stdout", "stderr"), states, strict=True):
        if state == "full":
            files.append(open("/dev/full", "wb"))  # noqa: PTH123, SIM115
            settings[name] = files[-1]
        elif state == "gone":
            reader, writer = os.pipe()
            os.close(reader)
            files.append(os.fdopen(writer, "wb"))
            settings[name] = files[-1]

    def close() -> None:
        for number, state in enumerate(states):
            if state == CLOSED:
                os.close(number)

    done = program(*words, preexec_fn=close, env={"PYTHONIOENCODING": encoding}, **settings)
    errors = done.stderr or b""
    assert done.returncode in (0, 1, 2, 141), (states, errors)
    assert (
        b"Traceback" not in errors and b"Exception ignored" not in errors and b"internal error" not in errors
    )
    for file in files:
        file.close()


VALUES = [
    "", "-1", "0", "1e999", "nan", "-inf", "99999999999999999999999999", "x", "\udcff", "\u20ac", "/", "/nowhere/x",
    "a" * 300,
    "true", "[" * 2000, "{}", "none", "all", "auto", "cuda", "cached", "\0", "~", "-", "--", "*",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(60))
def test_options_and_files_of_any_value(
    run: Run, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command with random values, and with a model file of which some bytes are others."""
    import click

    draw = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    name = draw.choice(["run", "chat", "score", "embed", "info", "verify"])
    command = edgelm.cli.group.get_command(click.Context(edgelm.cli.group), name)
    assert command is not None
    model = tmp_path / "m.onnx"
    content = bytearray(draw.choice([TINY, CHAT, IDS]).read_bytes())
    if seed % 3 == 0:
        for _ in range(draw.choice([1, 5, 50])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        content = content[: draw.choice([len(content), len(content) // 2, 10, 0])]
    model.write_bytes(content)
    words: list[str] = [name, str(model) if seed % 5 else draw.choice(VALUES)]
    if name in ("run", "score", "embed"):
        words += [draw.choice(["the", "-", *VALUES]) for _ in range(draw.choice([1, 1, 2]))]
    options = [
        p for p in command.params if isinstance(p, click.Option) and p.name not in ("debug", "max_new_tokens")
    ]
    for option in draw.sample(options, min(len(options), draw.choice([0, 1, 1, 3]))):
        words.append(draw.choice([o for o in option.opts if o.startswith("--")] or option.opts))
        if not option.is_flag:
            words.append(draw.choice(VALUES))
    if any(p.name == "max_new_tokens" for p in command.params):
        words += ["-n", "3"]
    status, _out, err = run(
        *words, given=draw.choice([b"", b"Hi\nthere\n", b"\xff\xfe\0", b"\xef\xbb\xbfHi\r\n", b"1 2 3"])
    )
    assert status in (0, 1, 2), words
    assert "Traceback" not in err and "internal error" not in err, (words, err)
    if status == 1:
        assert [line for line in err.splitlines() if line.startswith("edgelm: ")], (words, err)
