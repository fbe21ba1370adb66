"""Many callers who behave badly: what a server must bear.

    python tests/benchmarks/serve_load.py [MODEL] [--callers 32] [--seconds 60]

Starts `edgelm serve` in a process of its own. Each caller does one thing after another, at random: asks and waits,
reads a stream to its end, reads it slowly, breaks off before or in the middle of an answer or of its own request,
sends what is no JSON, asks for what is refused. Shown are the answers by status, and what should not be: an answer
other than the expected one or 429, a slot that is held when everyone has gone, memory that has grown since the first
sixth of the time, a traceback in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0  # seconds for any one answer
SETTLING = 10.0  # seconds for the last slots to be freed
BUSY = 429


@dataclass
class Report:
    """What happened. Sizes are bytes of resident memory."""

    statuses: Counter[int] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory_early: int = 0
    memory_late: int = 0
    held: str = ""
    """Slots and queue places that were not given back; empty where all were."""


class Connection:
    """A request in the raw, which can be broken off anywhere."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Connection:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, path: str, body: bytes, share: float = 1.0) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body
        self.writer.write(data[: int(len(data) * share)])
        await self.writer.drain()

    async def status(self) -> int:
        line = await self.reader.readline()
        return int(line.split()[1]) if line else 0


def _body(random_: random.Random, **more: object) -> bytes:
    values = {"max_tokens": random_.randint(1, 24), "temperature": 1.0, **more}
    if random_.random() < 0.5:
        values["prompt"] = "def f():\n" * random_.randint(1, 30)
    else:
        values["prompt"] = "import os" + "\n" * random_.randint(1, 3)
    return json.dumps(values).encode()


async def wait(caller: Connection, random_: random.Random) -> tuple[int, int]:
    await caller.send("/v1/completions", _body(random_, n=random_.choice([1, 1, 2])))
    status = await caller.status()
    text = await caller.reader.read()
    if status == 200:
        json.loads(text[text.index(b"\r\n\r\n") :])
    return 200, status


async def read_stream(caller: Connection, random_: random.Random, pause: float = 0.0) -> tuple[int, int]:
    await caller.send("/v1/completions", _body(random_, stream=True))
    status, text = await caller.status(), b""
    while part := await caller.reader.read(400 if pause else 1 << 16):
        text += part
        await asyncio.sleep(pause)
    return 200, status if status != 200 or b"data: [DONE]" in text else -1


async def read_slowly(caller: Connection, random_: random.Random) -> tuple[int, int]:
    return await read_stream(caller, random_, 0.02)


async def leave_before_the_answer(caller: Connection, random_: random.Random) -> tuple[int, int]:
    await caller.send("/v1/completions", _body(random_, stream=random_.random() < 0.5))
    await asyncio.sleep(random_.random() * 0.2)
    return 0, 0


async def leave_within_the_answer(caller: Connection, random_: random.Random) -> tuple[int, int]:
    await caller.send("/v1/completions", _body(random_, stream=True, max_tokens=300))
    status = await caller.status()
    await caller.reader.read(random_.randint(1, 2000))
    return 200, status


async def leave_within_the_request(caller: Connection, random_: random.Random) -> tuple[int, int]:
    await caller.send("/v1/completions", _body(random_), share=random_.random())
    return 0, 0


async def send_nonsense(caller: Connection, random_: random.Random) -> tuple[int, int]:
    await caller.send("/v1/completions", random_.randbytes(random_.randint(0, 400)))
    return 400, await caller.status()


async def ask_for_too_much(caller: Connection, random_: random.Random) -> tuple[int, int]:
    refused = random_.choice(
        [{"suffix": "x"}, {"prompt": "word " * 5000}, {"n": 1000}, {"temperature": "hot"}]
    )
    await caller.send("/v1/completions", json.dumps({"prompt": "a", **refused}).encode())
    return 400, await caller.status()


Act = Callable[[Connection, random.Random], Awaitable[tuple[int, int]]]
ACTS: tuple[Act, ...] = (
    wait, wait, read_stream, read_stream, read_slowly, leave_before_the_answer, leave_within_the_answer,
    leave_within_the_request, send_nonsense, ask_for_too_much,
)  # fmt: skip
"""Each gives the status that is expected besides 429, and the one that came."""


async def burden(port: int, process: int, callers: int, seconds: float) -> Report:
    """Let `callers` loose on the server at `port`, whose process it is, for `seconds`."""
    report = Report()
    end = asyncio.get_running_loop().time() + seconds

    async def call(number: int) -> None:
        random_ = random.Random(number)
        while asyncio.get_running_loop().time() < end:
            act = random_.choice(ACTS)
            report.acts[act.__name__] += 1
            try:
                async with asyncio.timeout(PATIENCE), Connection(port) as caller:
                    expected, status = await act(caller, random_)
            except (OSError, ValueError, TimeoutError) as error:
                report.wrong.append(f"{act.__name__}: {error!r}")
                continue
            report.statuses[status] += 1
            if status not in (expected, BUSY):
                report.wrong.append(f"{act.__name__}: {status} instead of {expected}")
            if status == BUSY:
                await asyncio.sleep(random_.random())

    async def watch() -> None:
        await asyncio.sleep(max(seconds / 6, 2.0))
        report.memory_early = resident(process)

    await asyncio.gather(watch(), *(call(number) for number in range(callers)))
    report.held = await _held(port)
    report.memory_late = resident(process)
    return report


async def _held(port: int) -> str:
    """The figures of slots and queue that do not go back to 0."""
    end = asyncio.get_running_loop().time() + SETTLING
    while True:
        text = await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/metrics")
        held = ", ".join(re.findall(r"^edgelm_texts_(?:active|queued) [1-9]\d*$", text, re.MULTILINE))
        if not held or asyncio.get_running_loop().time() > end:
            return held
        await asyncio.sleep(0.1)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text


def resident(process: int) -> int:
    """Bytes of a process's resident memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def start(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A running `edgelm serve` and its port."""
    path = os.pathsep.join(
        [*(str(ROOT / part) for part in (".", "export", "runtime")), *filter(None, sys.path)]
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "edgelm", "serve", "--port", "0", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    match = re.search(r"http://127.0.0.1:(\d+)", line)
    if match is None:
        raise SystemExit(line)
    return process, int(match[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="*", help="a model file; none: the one that ships with edgelm")
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    process, port = start(*given.model, "--queue", "16")
    assert process.stderr is not None
    log = asyncio.run(_main(process, port, given.callers, given.seconds))
    raise SystemExit(log)


async def _main(process: subprocess.Popen[str], port: int, callers: int, seconds: float) -> int:
    draining = asyncio.create_task(asyncio.to_thread(process.stderr.read))  # type: ignore[union-attr]
    report = await burden(port, process.pid, callers, seconds)
    process.send_signal(signal.SIGTERM)
    print(f"{sum(report.acts.values())} acts: {dict(report.acts)}")
    print(f"statuses (0: the caller left): {dict(report.statuses)}")
    print(
        f"resident memory: {report.memory_early / 1e6:.0f} MB early, {report.memory_late / 1e6:.0f} MB at the end"
    )
    print(f"held at the end: {report.held or 'nothing'}; exit status {await asyncio.to_thread(process.wait)}")
    tracebacks = (await draining).count("Traceback")
    print(f"wrong: {report.wrong or 'nothing'}; tracebacks in the log: {tracebacks}")
    return int(bool(report.wrong or report.held or tracebacks))


if __name__ == "__main__":
    main()
