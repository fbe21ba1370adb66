"""edgelm against its peers, side by side on this machine.

    python tests/benchmarks/peers/run.py [--install] [--only WORD] [--large] [--rounds 5] [--json FILE]

Each peer runs in its own environment, each subject in a process of its own that answers requests (worker.py). In a
round every subject does the same once, one after the other, so what else the machine does falls on all alike; a ratio
is the median of the rounds' ratios. Each round continues the text at another place. A peer or model that is missing
is left out with a word. `--install` makes what is missing first (gigabytes of packages, and a compiler for llama.cpp:
a quarter of an hour).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import CASES, LARGE, LARGE_CASES, Case, Subject
from install import ROOT, Unavailable, install, prepare, python_of

HERE = Path(__file__).parent
WINDOWS, WINDOW = 8, 512  # of the text, for perplexity
STRIDE = 500  # tokens: each round continues the text at another place, which is the same for all
HIGHER_IS_BETTER = {"decode"}


class Worker:
    """A subject's process."""

    def __init__(self, subject: Subject, work: Path, threads: int) -> None:
        python, model = python_of(work, subject.environment), work / "models" / subject.model
        if not python.exists():
            raise Unavailable(f"{subject.environment} is not installed")
        if not model.exists():
            raise Unavailable(f"there is no {subject.model}")
        arguments = [subject.adapter, str(model), str(threads), json.dumps(subject.options)]
        self.log = (work / "worker.log").open("w+")
        self._process = subprocess.Popen(
            [str(python), str(HERE / "worker.py"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        self.version: str = self._answer()["version"]

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.log.seek(0)
            lines = self.log.read().strip().splitlines() or ["it ended without a word"]
            raise Unavailable(lines[-1][:200])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def generate(worker: Worker, case: Case, ids: list[int]) -> list[float]:
    """When each token of a continuation of the first `ids` came, in seconds."""
    prompt = ids[:16] * (case.prompt // 16) if case.repetitive else ids[: case.prompt]
    seconds: list[float] = worker.ask(do="generate", ids=prompt, count=case.count)["seconds"]
    return seconds


def tokens_per_second(worker: Worker, case: Case, ids: list[int]) -> float:
    seconds = generate(worker, case, ids)
    return (len(seconds) - 1) / (seconds[-1] - seconds[0])


def milliseconds_per_token(worker: Worker, case: Case, ids: list[int]) -> float:
    return 1000 / tokens_per_second(worker, case, ids)


def total_seconds(worker: Worker, case: Case, ids: list[int]) -> float:
    return generate(worker, case, ids)[-1]


def prefill_milliseconds(worker: Worker, case: Case, ids: list[int]) -> float:
    prompt = ids[: case.prompt]
    first: float = worker.ask(do="generate", ids=prompt, count=1)["seconds"][0]
    return 1000 * first


def perplexity(worker: Worker, case: Case, ids: list[int]) -> float:
    windows = [ids[start : start + WINDOW] for start in range(0, WINDOWS * WINDOW, WINDOW)]
    total: float = worker.ask(do="logprob_sum", windows=windows)["logprob_sum"]
    return math.exp(-total / (WINDOWS * (WINDOW - 1)))


KINDS: dict[str, Callable[[Worker, Case, list[int]], float]] = {
    "decode": tokens_per_second, "step": milliseconds_per_token, "total": total_seconds,
    "prefill": prefill_milliseconds, "perplexity": perplexity,
}  # fmt: skip


def measure(case: Case, work: Path, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """By subject: the figure of each round, or why it was left out."""
    if case.kind in ("start", "memory"):
        return _fresh_processes(case, work, threads, rounds)
    workers: dict[Subject, Worker] = {}
    results: dict[str, dict[str, Any]] = {}
    for subject in case.subjects:
        try:
            workers[subject] = Worker(subject, work, threads)
        except Unavailable as error:
            results[subject.name] = {"left_out": str(error)}
    once = case.kind == "perplexity"  # nothing about it depends on time
    values: dict[Subject, list[float]] = {subject: [] for subject in workers}
    for number in range(1 if once else rounds + 1):
        for subject, worker in list(workers.items()):
            try:
                ids = _ids(subject, work)
                value = KINDS[case.kind](worker, case, ids[number * STRIDE % (len(ids) // 2) :])
            except Unavailable as error:
                results[subject.name] = {"left_out": str(error)}
                del workers[subject]
                continue
            if number or once:  # the first round warms up
                values[subject].append(value)
    for subject, worker in workers.items():
        results[subject.name] = {"values": values[subject], "version": worker.version}
        worker.close()
    return results


def _fresh_processes(case: Case, work: Path, threads: int, rounds: int) -> dict[str, dict[str, Any]]:
    """A process for every figure: seconds from its start to its first token, or its memory at most."""
    results: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for subject in case.subjects:
            if "left_out" in results.get(subject.name, {}):
                continue
            try:
                start = time.perf_counter()
                if subject.adapter == "command":
                    result = results.setdefault(subject.name, {"values": [], "version": "this checkout"})
                    result["values"].append(_first_output(start))
                    continue
                worker = Worker(subject, work, threads)
                generate(worker, case, _ids(subject, work))
                value = time.perf_counter() - start
                if case.kind == "memory":
                    value = worker.ask(do="memory")["peak_bytes"] / 1e6
                worker.close()
            except Unavailable as error:
                results[subject.name] = {"left_out": str(error)}
                continue
            results.setdefault(subject.name, {"values": [], "version": worker.version})["values"].append(
                value
            )
    return results


def _first_output(start: float) -> float:
    """Seconds until `edgelm run`, with the model that ships with edgelm, has printed its first token."""
    path = os.pathsep.join(str(ROOT / part) for part in (".", "export", "runtime"))
    command = [sys.executable, "-m", "edgelm", "run", "def main(", "-n", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    assert process.stdout
    if not process.stdout.read(1):
        raise Unavailable("`edgelm run` printed nothing")
    seconds = time.perf_counter() - start
    process.communicate()
    return seconds


def _ids(subject: Subject, work: Path) -> list[int]:
    families = ("ten-million", *LARGE)
    family = next((name for name in families if subject.model.startswith(name)), "smollm2")
    ids: list[int] = json.loads((work / "models" / f"{family}-hf" / "ids.json").read_text())
    return ids


def ratios(case: Case, ours: dict[str, Any], peer: dict[str, Any]) -> float | None:
    """How much better edgelm is: the median of the rounds' ratios."""
    if "values" not in ours or "values" not in peer:
        return None
    pairs = zip(ours["values"], peer["values"], strict=True)
    return statistics.median(a / b if case.kind in HIGHER_IS_BETTER else b / a for a, b in pairs)


def table(measured: list[tuple[Case, dict[str, dict[str, Any]]]]) -> str:
    """Markdown: every figure, and every goal with the ratio that was reached."""
    lines = ["| figure | subject | median |", "|---|---|---|"]
    for case, results in measured:
        for subject in case.subjects:
            result = results[subject.name]
            found = f"{statistics.median(result['values']):.4g}" if "values" in result else result["left_out"]
            lines.append(f"| {case.title} | {subject.name} | {found} |")
    lines += ["", "| figure | edgelm | over | ratio | goal |", "|---|---|---|---|---|"]
    for case, results in measured:
        for goal in case.goals:
            ratio = ratios(case, results[goal.ours], results[goal.peer])
            found = "-" if ratio is None else f"{ratio:.2f}"
            lines.append(f"| {case.title} | {goal.ours} | {goal.peer} | {found} | {goal.ratio:.2f} |")
    return "\n".join(lines)


def processor() -> str:
    """The processor's name, and how many of them there are."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{len(names)} x {names[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--install", action="store_true", help="make environments and models that are missing"
    )
    parser.add_argument(
        "--work", type=Path, default=HERE.parents[2] / "build" / "peers", help="where they are"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose title contains this")
    parser.add_argument(
        "--large", action="store_true", help="also models of about a billion parameters, with random weights"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there")
    options = parser.parse_args()
    say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    options.work.mkdir(parents=True, exist_ok=True)
    if options.install:
        install(options.work, say)
        prepare(options.work, say, large=options.large)
    measured = []
    for case in (*CASES, *(LARGE_CASES if options.large else ())):
        if options.only in case.title:
            say(case.title)
            measured.append((case, measure(case, options.work, options.threads, options.rounds)))
    machine = {"processor": processor(), "threads": options.threads, "date": time.strftime("%Y-%m-%d")}
    print(f"{machine['date']}, {machine['processor']}, {options.threads} threads\n\n{table(measured)}")
    if options.json:
        figures = [{"figure": case.title, "subjects": results} for case, results in measured]
        options.json.write_text(json.dumps({**machine, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
