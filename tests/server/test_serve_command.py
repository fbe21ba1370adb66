"""`edgelm serve` as a process: start, signals, and what cannot be started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

PATHS = os.pathsep.join(path for path in sys.path if path)
NEVER_END = {"4095": -100}  # the end token of the model that ships with edgelm


@contextlib.contextmanager
def process(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `edgelm serve` and its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "edgelm", "serve", "--port", "0", *arguments],
        env={**os.environ, "PYTHONPATH": PATHS, **environment},
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stderr is not None
            line = running.stderr.readline()
            match = re.search(r"http://[^ ,]+", line)
            assert match, line + running.stderr.read()
            yield running, match[0]
        finally:
            running.kill()


def client(url: str, key: str = "-") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def endless(asker: OpenAI, tokens: int = 500) -> Any:
    """A stream that goes on for a while, of which the first part has come."""
    stream = asker.completions.create(
        model="python", prompt="a", max_tokens=tokens, logit_bias=NEVER_END, stream=True
    )
    next(stream)
    return stream


def test_start_and_graceful_end_under_load() -> None:
    with process("--parallel", "2", "--drain", "60") as (running, url):
        asker = client(url)
        assert [model.id for model in asker.models.list()] == ["python"]
        streams = [endless(asker, 200) for _ in range(2)]
        running.send_signal(signal.SIGTERM)
        # What is under way comes to its end, whole.
        for stream in streams:
            chunks = list(stream)
            assert chunks[-1].choices[0].finish_reason == "length"
        assert running.wait(30) == 0
        with pytest.raises(openai.APIConnectionError):
            asker.models.list()


def test_what_does_not_end_in_time_is_cancelled_with_a_word() -> None:
    with process("--drain", "0.2") as (running, url):
        stream = endless(client(url))
        running.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="the server is shutting down"):
            list(stream)
        assert running.wait(30) == 0


def test_killed_and_started_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    with process("--port", port) as (running, url):
        stream = endless(client(url))
        running.kill()
        with pytest.raises(openai.APIError):
            list(stream)
        running.wait()
    with process("--port", port) as (_, url):
        assert client(url).completions.create(model="python", prompt="a", max_tokens=2).choices


def test_keys_hosts_and_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    with process("--api-key-file", str(tmp_path / "key"), "--alias", "coder", "--alias", "gpt") as (
        running,
        url,
    ):
        assert [model.id for model in client(url, "from a file").models.list()] == ["coder", "gpt"]
        with pytest.raises(openai.AuthenticationError):
            client(url).models.list()
    with process(EDGELM_API_KEY="from outside") as (running, url):
        assert client(url, "from outside").models.list().data
        with pytest.raises(openai.AuthenticationError):
            client(url).models.list()
    with process("--host", "0.0.0.0") as (running, url):
        assert running.stderr is not None and "--api-key closes it" in running.stderr.readline()
        assert json.load(urllib.request.urlopen(f"{url}/health")) == {"status": "ok"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--port", "99999"], "cannot listen on 127.0.0.1 port 99999"),
        (["--parallel", "0"], "parallel is 0"),
        (["--api-key", " "], "the API key is empty"),
        (["--api-key-file", "nowhere"], "cannot read nowhere"),
        (["--max-body", "0"], "--max-body"),
        (["--max-time", "0"], "--max-time"),
        (["nowhere.onnx"], "nowhere.onnx"),
    ],
)
def test_what_cannot_be_started_says_why_in_one_line(arguments: list[str], message: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "edgelm", "serve", "--port", "0", *arguments],
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0 and message in result.stderr and "Traceback" not in result.stderr


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from edgelm.cli import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(sys, "argv", ["edgelm", "serve", "--port", str(port)])
        with pytest.raises(SystemExit):
            main()
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
