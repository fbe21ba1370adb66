"""The command-line front ends of the runtime, run as a user runs them."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import CHAT, IDS, TINY

from edgelm.cli import main
from edgelm_runtime import load

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `edgelm ARGUMENTS` with text on standard input: exit status, output, errors."""

    def run(*arguments: object, given: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edgelm", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8"))
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return run


def test_score_of_files_and_standard_input(run: Run, tmp_path: Path) -> None:
    first = tmp_path / "first.txt"
    first.write_text("the thing in the string\n" * 5)
    status, out, _ = run("score", TINY, first, "-", given="another text")
    lines = out.splitlines()
    assert status == 0 and [line.split(":")[0] for line in lines] == [str(first), "-", "total"]
    with load(TINY) as lm:
        score = lm.score(first.read_text())
    figures = f"perplexity {score.perplexity:.4f}, {score.bits_per_byte:.4f} bits per byte"
    assert lines[0] == f"{first}: {len(score.logprobs)} tokens, {figures}"
    _, out, _ = run("score", TINY, first, "-", "--json", "--stride", 3, given="another text")
    one, two, total = map(json.loads, out.splitlines())
    assert total["tokens"] == one["tokens"] + two["tokens"]
    bits = [entry["bits_per_byte"] * entry["bytes"] for entry in (one, two)]
    assert total["bits_per_byte"] == pytest.approx(sum(bits) / (one["bytes"] + two["bytes"]))
    assert one["perplexity"] != score.perplexity  # another stride, other contexts
    assert json.loads(run("score", IDS, "-", "--json", given="1 2, 3")[1])["tokens"] == 2


def test_embed_to_lines_and_arrays(run: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the first\n\nthe second \u20ac\n")
    with load(TINY) as lm:
        expected = lm.embed(["a text", "the first", "the second \u20ac"])
        tokens = lm.embed("a text", layer="embeddings", pooling="none", normalize=False)
    status, out, _ = run("embed", TINY, "a text", texts)
    records = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [record["text"] for record in records] == [
        "a text",
        "the first",
        "the second \u20ac",
    ]
    assert np.array_equal(np.array([r["embedding"] for r in records], np.float32), expected)
    array = tmp_path / "out.npy"
    assert run("embed", TINY, "-", "-o", array, given="a text\nthe first\nthe second \u20ac\n") == (0, "", "")
    assert np.array_equal(np.load(array), expected)
    lines = tmp_path / "out.jsonl"
    options = ("--layer", "embeddings", "--pooling", "none", "--no-normalize", "-o", lines)
    assert run("embed", TINY, *options, given="a text\n")[0] == 0
    assert np.array_equal(np.array(json.loads(lines.read_text())["embedding"], np.float32), tokens)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.npy", "texts.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("score", TINY, "nowhere.txt"), "cannot read nowhere.txt"),
        (("score", TINY, TINY), "is not UTF-8 text"),
        (("score", TINY, "-"), "-: the text has 1 tokens"),
        (("score", TINY, __file__, "--stride", 0), "test_commands.py: stride is 0"),
        (("score", "nowhere.onnx", "-"), "nowhere.onnx; check the path"),
        (("embed", TINY), "there is no text"),
        (("embed", CHAT, "a"), "--outputs hidden"),
        (("embed", TINY, "a", "-o", "/nowhere/x.npy"), "cannot write /nowhere/x.npy"),
        (("embed", TINY, "a", "--pooling", "none", "-o", "x.npy"), "unequal length"),
        (("embed", TINY, "a", "--pooling", "max"), "pooling is 'max'"),
        (("chat", IDS), "no tokenizer"),
        (("chat", TINY, "-t", "-1"), "temperature is -1"),
        (("chat", TINY, "--provider", "warp"), "no provider 'warp'"),
    ],
)
def test_an_error_is_one_line(run: Run, arguments: tuple[object, ...], message: str) -> None:
    status, out, err = run(*arguments)
    assert status == 1 and out == ""
    assert message in err and err.startswith("edgelm: ") and err.count("\n") == 1


def test_a_conversation_from_a_pipe(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    lines = [
        "Hi",
        "",
        f"/save {saved}",
        "/reset",
        f"/save {tmp_path / 'empty.json'}",
        "/save",
        "/what",
        "/exit",
        "Hi",
    ]
    status, out, err = run("chat", TINY, "--system", "Be brief.", "-n", 8, given="\n".join(lines))
    assert status == 0
    messages = json.loads(saved.read_text())
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert [message["content"] for message in messages[:2]] == ["Be brief.", "Hi"]
    with load(TINY) as lm, pytest.warns(UserWarning):
        answer = lm.chat(messages[:2], max_new_tokens=8)
    assert messages[2]["content"] == answer.text.strip() and out.rstrip("\n") == answer.text.lstrip()
    assert json.loads((tmp_path / "empty.json").read_text()) == messages[:1]
    for text in ("-n allows more tokens", "/save needs", "there is no /what", "/reset"):
        assert text in err


class Terminal:
    """`edgelm chat` in a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        import pty

        self._screen, inner = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edgelm", "chat", *map(str, arguments)],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            start_new_session=True,
            preexec_fn=self._own_terminal,
        )
        os.close(inner)
        self.seen = b""

    @staticmethod
    def _own_terminal() -> None:
        """Make the terminal the one that Ctrl-C comes from, even where the tests run in the background."""
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def send(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str, seconds: float = 60, keys: str = "") -> None:
        """Read the screen until `text` appears after what was read before.

        `keys` are pressed now, and again every other second: a signal that arrives between the prompt and
        the wait for input would otherwise be noticed at the next key only.
        """
        end, start, press = time.monotonic() + seconds, len(self.seen), 0.0
        while text.encode() not in self.seen[start:]:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if keys and time.monotonic() >= press:
                self.send(keys)
                press = time.monotonic() + 2
            if select.select([self._screen], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._screen, 4096)
                except OSError:
                    break

    def close(self) -> int:
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            os.close(self._screen)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    """At the prompt it does nothing, and the arrow keys bring back the last line."""
    saved = tmp_path / "talk.json"
    terminal = Terminal(TINY, "-n", 10**6, "-t", 1, "-s", 1)
    try:
        terminal.wait_for("> ")
        terminal.wait_for("> ", keys="\x03")
        terminal.send("tell\n")
        terminal.wait_for("context of 24 tokens is full")  # it talks, and would for a long time
        terminal.wait_for("> ", keys="\x03")
        terminal.send("\x1b[A\x01\x0b/save " + str(saved) + "\n")  # up, to the front, cut, something else
        terminal.wait_for("> ")
        terminal.send("/exit\n")
        assert terminal.close() == 0
    finally:
        terminal.process.kill()
    roles = [message["role"] for message in json.loads(saved.read_text())]
    assert roles == ["user", "assistant"]
