"""Executes every Python example of the embedding guide, each in a folder with a model file."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import TINY

import edgelm_runtime

HERE = Path(__file__).resolve()
# In the repository, or next to these tests where they run on their own.
GUIDE = next(
    p for p in (HERE.parents[2] / "runtime" / "README.md", HERE.parents[1] / "README.md") if p.exists()
)
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
EXTRAS = {"from flask": "flask", "json_schema": "llguidance"}

pytestmark = pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")


def example(containing: str) -> str:
    (found,) = (code for code in EXAMPLES if containing in code)
    return found


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs an example where a model.onnx lies, and gives its names."""
    shutil.copy(TINY, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)

    def execute(code: str) -> dict[str, Any]:
        for mark, package in EXTRAS.items():
            if mark in code:
                pytest.importorskip(package)
        names: dict[str, Any] = {"__name__": "example"}
        exec(compile(code, str(GUIDE), "exec"), names)
        return names

    return execute


@pytest.mark.parametrize("code", [c for c in EXAMPLES if "tkinter" not in c and "flask" not in c])
def test_example(
    execute: Callable[[str], dict[str, Any]], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = execute(code)
    printed = capsys.readouterr().out
    for line in code.splitlines():  # a print's comment is what it prints
        if match := re.fullmatch(r" *print\(.*\) +# (.+)", line):
            assert not re.match(r"\w+$|\[", match[1]) or match[1] in printed, line
    if "first, second" in code:
        assert len(names["three"]) == 3
    if "json_schema" in code:
        assert set(names["person"]) == {"name", "age"} and names["answer"] in ("yes", "no")
        assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", names["date"])


def test_the_example_for_other_languages_agrees_with_the_runtime(
    execute: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    ids = execute(example("custom_metadata_map"))["ids"]
    with edgelm_runtime.load(TINY) as lm:
        start = lm.tokenizer.encode("The")
        assert ids == start + lm.generate(start, max_new_tokens=20).token_ids
        assert capsys.readouterr().out == lm.tokenizer.decode(ids) + "\n"


def test_the_web_view(execute: Callable[[str], dict[str, Any]]) -> None:
    app = execute(example("from flask"))["app"]
    client = app.test_client()
    with edgelm_runtime.load(TINY) as lm:
        expected = lm.generate("The ", max_new_tokens=12).text
    reply = client.post("/complete", json={"prompt": "The ", "max_new_tokens": 12})
    assert (reply.status_code, reply.text) == (200, expected)
    assert client.post("/complete", json={"prompt": "The ", "max_new_tokens": -1}).status_code == 400
    replies: list[str] = []
    ask = {"prompt": "The ", "max_new_tokens": 12}
    threads = [
        threading.Thread(target=lambda: replies.append(app.test_client().post("/complete", json=ask).text))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [expected] * 4


class Widget:
    """As much of tkinter as the example uses; where there is a display, the real one runs."""

    def __init__(self, *_: Any) -> None:
        self.text = ""
        self.bound: dict[str, Callable[[Any], None]] = {}
        self.later: list[Callable[[], None]] = []

    def title(self, text: str) -> None: ...
    def pack(self, **_: Any) -> None: ...

    def get(self, *_: str) -> str:
        return self.text

    def insert(self, _: Any, text: str) -> None:
        self.text += text

    def delete(self, *_: Any) -> None:
        self.text = ""

    def bind(self, name: str, function: Callable[[Any], None]) -> None:
        self.bound[name] = function

    def event_generate(self, name: str) -> None:
        self.bound[name](None)

    def after(self, _: int, function: Callable[[], None]) -> None:
        self.later.append(function)

    def update(self) -> None:
        due, self.later = self.later, []
        for function in due:
            function()

    def mainloop(self) -> None: ...
    def destroy(self) -> None: ...


def test_the_window(execute: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ.get("DISPLAY"):
        tkinter = pytest.importorskip("tkinter")
        monkeypatch.setattr(tkinter.Tk, "mainloop", lambda self: None)
    else:
        fake: Any = types.ModuleType("tkinter")
        fake.Tk = fake.Text = fake.Entry = Widget
        monkeypatch.setitem(sys.modules, "tkinter", fake)
    names = execute(example("tkinter.Tk"))
    window, line, page = names["window"], names["line"], names["page"]
    line.insert("end", "The ")
    window.update()
    if hasattr(line, "focus_force"):
        line.focus_force()
        window.update()
    line.event_generate("<Return>")
    with edgelm_runtime.load(TINY) as lm:
        expected = "The " + lm.generate("The ", max_new_tokens=40).text.replace("\r", "\n")
    end = time.monotonic() + 20
    while len(page.get("1.0", "end-1c")) < len(expected) + 1 and time.monotonic() < end:
        window.update()
        time.sleep(0.01)
    assert page.get("1.0", "end-1c").rstrip("\n") == expected.rstrip("\n")
    assert line.get() == ""
    window.destroy()


def test_the_commands(
    execute: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from edgelm.cli import main

    Path("notes.txt").write_text("one text\nanother\n")
    (block,) = re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        monkeypatch.setattr(sys, "argv", shlex.split(line))
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
        main()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 1 and printed[-1].startswith("notes.txt: ")
    assert np.load("vectors.npy").shape == (2, 16)


def test_links_lead_somewhere() -> None:
    if GUIDE.parent.name != "runtime":
        pytest.skip("only in the repository")
    for target in re.findall(r"\]\(([^)#:]+)\)", GUIDE.read_text(encoding="utf-8")):
        assert (GUIDE.parent / target).exists(), target
