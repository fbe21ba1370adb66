"""How fast model files are on this machine, and how much memory they take. Needs no PyTorch.

Figures that depend on what else the machine does are only worth something next to each other, so several files are
measured in turn, round by round, and each figure is the median of its rounds. What a program pays once (loading, the
first token, memory) is measured in a fresh process of its own.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ModelFileError, OptionError
from edgelm_runtime.generation.loop import generate_ids
from edgelm_runtime.loading import Decode, choose_decoder
from edgelm_runtime.model_file.metadata import read_model_file
from edgelm_runtime.validation import function, path_of, shown, whole

if TYPE_CHECKING:
    from edgelm_runtime.generation.decoder import Decoder

PREFILL = (32, 128, 512)
CONTEXTS = (64, 256, 1000)
FIRST_PROMPT, FIRST_TOKENS = (
    64,
    64,
)  # what the fresh process computes: enough for its memory to reach its peak


@dataclass
class Figures:
    """What was measured of one file. Times are in seconds, sizes in bytes; lengths that do not fit are left out."""

    path: str
    file_bytes: int
    decode: str
    """`cached` or `recompute`: how it was run."""
    provider: str = ""
    load: float = 0.0
    first_token: float = 0.0
    """From the start of the process to the first token after a prompt of 64, Python included."""
    peak_bytes: int | None = None
    """Resident memory at most, of a process that loads the model and makes 64 tokens. None where unknown."""
    prefill: dict[int, float] = field(default_factory=dict)
    """By the number of tokens: one pass over all of them."""
    step: dict[int, float] = field(default_factory=dict)
    """By the number of tokens before it: one token more."""
    python: dict[int, float] = field(default_factory=dict)
    """The part of `step` outside onnxruntime."""


def benchmark(
    paths: Sequence[str | Path],
    *,
    provider: str = "auto",
    threads: int | None = None,
    decode: Decode = "auto",
    prefill: Sequence[int] = PREFILL,
    contexts: Sequence[int] = CONTEXTS,
    steps: int = 16,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Figures]:
    """Measure model files against each other: `rounds` times each figure, `steps` tokens after each context.

    Prompts are random token ids. Raises OptionError for a length or number that cannot be, and what loading raises.
    """
    for name, values in (("prefill", prefill), ("contexts", contexts)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise OptionError(f"{name} is {shown(values)}", "give a list of lengths")
        for value in values:
            whole(f"a length in {name}", value, 1)
    whole("steps", steps, 1)
    whole("rounds", rounds, 1)
    function("progress", progress)
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise OptionError(f"paths is {shown(paths)}", "give a list of model files")
    subjects = [_Subject(path_of("a model", path), provider, threads, decode) for path in paths]
    for subject in subjects:
        progress(f"start and memory of {subject.figures.path}")
        subject.start(provider, threads, decode, rounds)
    for length in prefill:
        progress(f"prefill of {length} tokens")
        _in_turn(subjects, rounds, length, 1)
    for length in contexts:
        progress(f"decoding after {length} tokens")
        _in_turn(subjects, rounds, length, 1 + steps)
    return [subject.figures for subject in subjects]


def _in_turn(subjects: Sequence[_Subject], rounds: int, length: int, count: int) -> None:
    taking_part = [subject for subject in subjects if length + count - 1 <= subject.decoder.context_length]
    measured = [[subject.run(length, count) for subject in taking_part] for _ in range(rounds + 1)]
    for subject, of_rounds in zip(taking_part, zip(*measured[1:], strict=True), strict=True):
        total, graph = (statistics.median(values) for values in zip(*of_rounds, strict=True))
        if count == 1:
            subject.figures.prefill[length] = total
        else:
            subject.figures.step[length], subject.figures.python[length] = total, total - graph


class _Subject:
    """A model file under measurement."""

    def __init__(self, path: Path, provider: str, threads: int | None, decode: Decode) -> None:
        session = Session(path, provider, threads)
        self._clock = _TimedSession(session)
        info = read_model_file(session, str(path))
        self.decoder = choose_decoder(decode, cast(Session, self._clock), info, str(path))
        prompt = np.random.default_rng(0).integers(0, info.vocab_size, info.context_length)
        self._prompt: list[int] = prompt.tolist()
        size = session.model.size if session.model is not None else 0
        provider_name = session.provider.removesuffix("ExecutionProvider")
        self.figures = Figures(str(path), size, _how(self.decoder), provider_name)

    def start(self, provider: str, threads: int | None, decode: Decode, rounds: int) -> None:
        """Measure what a process pays once."""
        starts = [_fresh_process(self.figures.path, provider, threads, decode) for _ in range(rounds)]
        self.figures.load = statistics.median(start["load"] for start in starts)
        self.figures.first_token = statistics.median(start["first_token"] for start in starts)
        self.figures.peak_bytes = starts[0]["peak_bytes"]

    def run(self, length: int, count: int) -> tuple[float, float]:
        """Seconds per token after `length`, the median of those after the first: in all, and inside onnxruntime.

        For a `count` of 1 that is the pass over the prompt.
        """
        self.decoder.clear()
        times: list[tuple[float, float]] = []
        start, graph = time.perf_counter(), self._clock.seconds
        generate_ids(
            self.decoder, self._prompt[:length], max_new_tokens=count, lookup=0,
            on_token=lambda _: times.append((time.perf_counter(), self._clock.seconds)),
        )  # fmt: skip
        if count == 1:
            return times[0][0] - start, times[0][1] - graph
        steps, in_graph = (np.median(np.diff(column)) for column in zip(*times, strict=True))
        return float(steps), float(in_graph)


class _TimedSession:
    """A session that adds up the time spent in it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        start = time.perf_counter()
        results = self._session.run(outputs, feeds)
        self.seconds += time.perf_counter() - start
        return results

    def run_bound(self, binding: Any) -> None:
        start = time.perf_counter()
        self._session.run_bound(binding)
        self.seconds += time.perf_counter() - start


def _how(decoder: Decoder) -> str:
    return type(decoder).__name__.removesuffix("Decoder").lower()


def _fresh_process(path: str, provider: str, threads: int | None, decode: Decode) -> dict[str, Any]:
    code = (
        "import sys; from edgelm_runtime.reports.benchmark import _first_tokens; _first_tokens(*sys.argv[1:])"
    )
    # A checkout is imported from the same place as here.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, path, provider, str(threads or 0), decode, repr(time.time())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ModelFileError(f"{path} did not run in a process of its own: {lines[-1]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _first_tokens(path: str, provider: str, threads: str, decode: str, started: str) -> None:
    """What a fresh process does: load, make a few tokens, print what it took."""
    from edgelm_runtime import load

    with load(path, provider, int(threads) or None, decode=cast(Decode, decode)) as lm:
        times: list[float] = []
        length = min(FIRST_PROMPT, lm.info.context_length)
        lm.generate(
            [0] * length, max_new_tokens=FIRST_TOKENS, lookup=0, on_token=lambda _: times.append(time.time())
        )
        first = times[0] - float(started)
        print(json.dumps({"load": lm.load_seconds, "first_token": first, "peak_bytes": peak_memory()}))


def peak_memory() -> int | None:
    """Resident memory of this process at most so far, in bytes; None where the system does not tell."""
    try:
        # The kernel's own figure: `getrusage` counts what the process was before it started this program.
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def parse_lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens separated by commas. Raises OptionError."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise OptionError(f"{text!r} is not a list of lengths", "write for instance 32,128,512") from None
