"""`edgelm serve` next to llama.cpp's own server, with the same weights in 4 bits.

    python tests/benchmarks/peers/serving.py [--install] [--only edgelm|llama.cpp] [--rounds 3] [--json FILE]

Measured: tokens per second of 1, 4, 8 and 16 callers together, each with 128 tokens after a prompt of 64 and of 512;
the 95th percentile of the time to the first token of short prompts that come every tenth of a second while one of 2000
tokens is read; and the time from starting the process to the end of its first answer. Both servers get token ids,
answer greedily, and may not end early. They run one after the other in each round, so that what else the machine does
falls on both; `--prompts` and `--no-long` measure in parts. `--install` makes what is missing first: llama-server is
compiled from the sources in llama-cpp-python's distribution, which takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from install import GGUF, LLAMA_FLAGS, ROOT, Unavailable, prepare, run_command
from run import processor

HERE = Path(__file__).parent
CALLERS, PROMPTS, TOKENS = (1, 4, 8, 16), (64, 512), 128
LONG_PROMPT, SHORT_PROMPT, SHORT_REQUESTS, SHORT_EVERY = 2000, 32, 20, 0.1
SLOTS = 16
CONTEXT = 2560  # per slot: the long prompt and its answer
PATIENCE = 900.0
END_IDS = (0, 2)  # <|endoftext|> and <|im_end|>, which no server may choose
Server = Callable[[int], subprocess.Popen[bytes]]


def edgelm(work: Path, threads: int) -> Server:
    """How to start edgelm on a port."""
    model = _there(work / "models" / "smollm2-int4-cache.onnx")

    def start(port: int) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(
            [*(str(ROOT / part) for part in (".", "export", "runtime")), *filter(None, sys.path)]
        )
        arguments = ["--port", str(port), "--parallel", str(SLOTS), "--threads", str(threads)]
        return subprocess.Popen(
            [sys.executable, "-m", "edgelm", "serve", str(model), *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stderr=subprocess.DEVNULL,
        )

    return start


def llama(work: Path, threads: int) -> Server:
    """How to start llama-server on a port."""
    program, model = _there(_llama_server(work)), _there(work / "models" / GGUF)

    def start(port: int) -> subprocess.Popen[bytes]:
        arguments = ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-t", str(threads)]
        arguments += ["-np", str(SLOTS), "-c", str(SLOTS * CONTEXT), "--no-webui"]
        return subprocess.Popen(
            [str(program), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    return start


SERVERS = {"edgelm": edgelm, "llama.cpp": llama}


def _there(path: Path) -> Path:
    if not path.exists():
        raise Unavailable(f"there is no {path}")
    return path


def _llama_server(work: Path) -> Path:
    return work / "llama-server" / "build" / "bin" / "llama-server"


def build_llama_server(work: Path) -> None:
    """Compile llama-server, unless it is there."""
    if _llama_server(work).exists():
        return
    folder = work / "llama-server"
    folder.mkdir(parents=True, exist_ok=True)
    (requirement,) = (HERE / "requirements-llama.txt").read_text().split()
    pip = [sys.executable, "-m", "pip"]
    run_command([*pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder), requirement])
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("llama_cpp_python-*/vendor/llama.cpp")
    flags = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DLLAMA_CURL=OFF",
        "-DLLAMA_OPENSSL=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        *LLAMA_FLAGS.split(),
    ]
    run_command(["cmake", "-S", str(source), "-B", str(folder / "build"), *flags])
    run_command(
        ["cmake", "--build", str(folder / "build"), "--target", "llama-server", "-j", str(os.cpu_count())]
    )


def ids(length: int, number: int) -> list[int]:
    """A prompt of its own for each number, so that no cache of an earlier request helps."""
    return [1000 + (number * 7919 + position * 104729) % 40000 for position in range(length)]


def post(port: int, prompt: list[int], tokens: int, stream: bool = False) -> http.client.HTTPResponse:
    body = {
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream,
        "logit_bias": {str(token): -100 for token in END_IDS},
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def answer(port: int, prompt: list[int], tokens: int) -> int:
    """How many tokens came."""
    with post(port, prompt, tokens) as response:
        values = json.load(response)
    if response.status != 200:
        raise RuntimeError(values)
    made: int = values["usage"]["completion_tokens"]
    return made


def first_token(port: int, prompt: list[int]) -> float:
    """Seconds to the first piece of text."""
    started = time.perf_counter()
    with post(port, prompt, 8, stream=True) as response:
        for line in response:
            if line.startswith(b"data: ") and json.loads(line[6:])["choices"][0]["text"]:
                seconds = time.perf_counter() - started
                response.read()
                return seconds
    raise RuntimeError("the stream had no text")


def throughput(port: int, callers: int, length: int, number: int) -> float:
    """Tokens per second of all callers together."""
    prompts = [ids(length, number * 100 + caller) for caller in range(callers)]
    started = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        made = sum(pool.map(lambda prompt: answer(port, prompt, TOKENS), prompts))
    return made / (time.perf_counter() - started)


def first_tokens(port: int, number: int) -> float:
    """95th percentile, in seconds, of short prompts that come at a steady pace from when a long one has come on.

    They do not wait for each other: a server that lets the first of them wait lets those wait that come after it.
    """
    with ThreadPoolExecutor(SHORT_REQUESTS + 1) as pool:
        long = pool.submit(answer, port, ids(LONG_PROMPT, number), 64)
        waits = []
        for index in range(SHORT_REQUESTS):
            time.sleep(SHORT_EVERY)
            waits.append(pool.submit(first_token, port, ids(SHORT_PROMPT, number + 1 + index)))
        times = sorted(wait.result() for wait in waits)
        long.result()
    return times[int(0.95 * (len(times) - 1) + 0.5)]


@contextmanager
def running(start: Server) -> Iterator[tuple[int, float]]:
    """A server's port, and the seconds from its start to the end of its first answer."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    started = time.perf_counter()
    process = start(port)
    try:
        while True:
            try:
                answer(port, ids(8, 0), 1)
                break
            except (OSError, http.client.HTTPException, RuntimeError):
                if process.poll() is not None or time.perf_counter() - started > PATIENCE:
                    raise Unavailable("the server does not answer") from None
                time.sleep(0.005)
        yield port, time.perf_counter() - started
    finally:
        process.kill()
        process.wait()


def measure(start: Server, number: int, prompts: Sequence[int], long: bool) -> dict[str, float]:
    """The figures of a server, once."""
    figures = {}
    with running(start) as (port, seconds):
        figures["start to first answer, s"] = seconds
        for length in prompts:
            for callers in CALLERS:
                title = f"{callers} at once, prompts of {length}, tokens/s"
                figures[title] = throughput(port, callers, length, number * 10 + length)
        if long:
            figures["first token next to a long prompt, p95, s"] = first_tokens(port, 5000 + number * 100)
    return figures


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """Medians of each server, and of the rounds' ratios."""
    names = [name for name in SERVERS if all(name in figures for figures in rounds)]
    lines = [f"| figure | {' | '.join(names)} | ratio |", "|---" * (len(names) + 2) + "|"]
    for title in rounds[0][names[0]]:
        values = [f"{statistics.median(figures[name][title] for figures in rounds):.3g}" for name in names]
        ratios = [figures[names[0]][title] / figures[names[-1]][title] for figures in rounds]
        ratio = f"{statistics.median(ratios):.2f}" if len(names) > 1 else ""
        lines.append(f"| {title} | {' | '.join(values)} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--install", action="store_true", help="make what is missing")
    parser.add_argument("--only", choices=SERVERS, help="one server alone")
    parser.add_argument(
        "--prompts", type=int, nargs="*", default=PROMPTS, help="lengths, to measure in parts"
    )
    parser.add_argument("--no-long", action="store_true", help="leave out the long prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "peers", help="where models and servers are"
    )
    parser.add_argument("--json", type=Path, help="where all figures go")
    given = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    if given.install:
        prepare(given.work, say, only=(GGUF, "smollm2-int4-cache.onnx"))
        build_llama_server(given.work)
    servers: dict[str, Server] = {}
    for name, make in SERVERS.items():
        if given.only in (None, name):
            try:
                servers[name] = make(given.work, given.threads)
            except Unavailable as error:
                say(f"left out: {name} ({error})")
    if not servers:
        raise SystemExit("no server is there; --install makes them")
    rounds: list[dict[str, Any]] = []
    for number in range(given.rounds):
        say(f"round {number + 1}")
        rounds.append(
            {
                name: measure(start, number, given.prompts, not given.no_long)
                for name, start in servers.items()
            }
        )
        say(json.dumps(rounds[-1], indent=1))
    print(f"{time.strftime('%Y-%m-%d')}, {processor()}, {given.threads} threads\n\n{table(rounds)}")
    if given.json:
        given.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
