"""What the runtime's Python costs: `python tests/benchmarks/sampling.py`.

First table: milliseconds of processor time per token of the whole generation loop (window, lookup, sampler,
detokenizer, stop strings) with a decoder that takes no time. Second table: what lookup saves and costs, counted
with decoders that follow a script, where a pass costs as much as the tokens that it is fed. The figures are in
tests/benchmarks/README.md.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "runtime")]

from edgelm_runtime import Limits, Sampling, Stats, Tokenizer  # noqa: E402
from edgelm_runtime.generation.decoder import Decoder  # noqa: E402
from edgelm_runtime.generation.loop import run  # noqa: E402
from edgelm_runtime.generation.options import split_options  # noqa: E402
from edgelm_runtime.generation.sampler import Sampler  # noqa: E402
from edgelm_runtime.generation.sequence import Row  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, two stop strings": {"stop": ["\n\n", "User:"]},
    "temperature": {"temperature": 0.8},
    "top-k 40": {"temperature": 0.8, "top_k": 40},
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top-p 0.95, nearly flat": {"temperature": 30.0, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "typical-p 0.9": {"temperature": 0.8, "typical_p": 0.9},
    "repeat penalty 1.1": {"temperature": 0.8, "repeat_penalty": 1.1},
    "top-k, top-p, penalty, stop": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "repeat_penalty": 1.1, "stop": ["\n\n", "User:"],
    },
    "greedy, 5 log-probabilities": {"logprobs": 5},
}  # fmt: skip


class InstantDecoder(Decoder):
    """Gives one of a few prepared rows of logits, peaked as a language model's are."""

    context_length = 1024

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        generator = np.random.default_rng(0)
        self._rows = (3 * generator.standard_normal((16, 1, vocab_size))).astype(np.float32)
        self._next = 0

    def __call__(self, rows: Sequence[Any], counts: Sequence[int]) -> list[Any]:
        self._next = (self._next + 1) % len(self._rows)
        return [np.broadcast_to(self._rows[self._next], (count, self.vocab_size)) for count in counts]


class ScriptedDecoder(Decoder):
    """Continues as a script goes on, and adds up the tokens that it is fed."""

    context_length = 1 << 20

    def __init__(self, script: list[int]) -> None:
        self.vocab_size = max(script) + 1
        self.fed = 0
        self._script = np.array(script)

    def __call__(self, rows: Sequence[Any], counts: Sequence[int]) -> list[Any]:
        self.fed += sum(map(len, rows))
        return [self._logits(len(row), count) for row, count in zip(rows, counts, strict=True)]

    def _logits(self, length: int, count: int) -> Any:
        logits = np.zeros((count, self.vocab_size), np.float32)
        places = np.arange(length - count + 1, length + 1) % len(self._script)
        logits[np.arange(count), self._script[places]] = 1
        return logits


def wide_tokenizer(vocab_size: int) -> Tokenizer:
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = (f"{a}{b}{c}{d}" for a in letters for b in letters for c in letters for d in letters)
    tokens = [bytes([byte]) for byte in range(256)]
    return Tokenizer(tokens + [next(words).encode() for _ in range(vocab_size - 256)])


def milliseconds(decoder: InstantDecoder, tokenizer: Tokenizer, options: dict[str, Any]) -> float:
    """Per token, the median of several texts of 200."""
    sampling, limits, _ = split_options({"seed": 1, "max_new_tokens": 200, **options})
    prompt = np.random.default_rng(1).integers(0, decoder.vocab_size, 256)
    figures = []
    for _ in range(7):
        row = Row(prompt, Sampler(sampling), limits, (), tokenizer)
        started = time.process_time()
        made = sum(1 for _ in run(decoder, [row], limits))
        figures.append((time.process_time() - started) / made * 1000)
    return statistics.median(figures)


def words_of(text: str) -> list[str]:
    return re.findall(r" ?\w+|\s+|[^\w\s]", text)


def texts() -> Iterator[tuple[str, list[Any], int]]:
    """Name, script, and how much of it is the prompt."""
    source = Path(textwrap.__file__).read_text()
    edited = source.replace("TextWrapper", "LineBreaker").replace("width", "columns")
    prompt = words_of(f"Rename the class and the width.\n{source}\nResult:\n")
    yield "code, edited", prompt + words_of(edited), len(prompt)
    people = [{"id": i, "name": f"user{i * 7 % 13}", "active": i % 3 == 0, "score": i * i} for i in range(80)]
    records = words_of(json.dumps(people, indent=1))
    yield "JSON records", records, 100
    sentences = re.findall(r"[A-Z][^.]+\.", source)
    quoted = " ".join(
        f'As it says, "{sentence}" in other words {i}.' for i, sentence in enumerate(sentences[:40:4])
    )
    prompt = words_of(source)
    yield "quotes", prompt + words_of(quoted), len(prompt)
    yield "prose, new", words_of(source), 200
    generator = np.random.default_rng(0)
    yield "random tokens", generator.integers(0, 50_000, 1200).tolist(), 200
    wrong = [token for number in range(500) for token in ("one", "two", number)]
    yield "every draft wrong", wrong, 200
    yield "every draft wrong, short", wrong[:60], 10


def lookup_figures(script: list[Any], prompt_length: int, lookup: Any) -> tuple[int, Stats]:
    """Tokens fed to the decoder, and the counts."""
    number = {word: index for index, word in enumerate(dict.fromkeys(script))}
    ids = [number[word] for word in script]
    decoder, stats = ScriptedDecoder(ids), Stats()
    limits = Limits(max_new_tokens=min(1000, len(ids) - prompt_length), lookup=lookup)
    row = Row(ids[:prompt_length], Sampler(Sampling()), limits)
    for _ in run(decoder, [row], limits, stats):
        pass
    assert row.new_ids == ids[prompt_length : prompt_length + stats.tokens], "lookup changed the text"
    return decoder.fed, stats


def import_milliseconds() -> float:
    """Processor time that the runtime's import adds to those of numpy and onnxruntime; the best of five."""
    code = (
        "import numpy, onnxruntime, time; started = time.process_time(); import edgelm_runtime; "
        "edgelm_runtime.load; print((time.process_time() - started) * 1000)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "runtime")}
    command = [sys.executable, "-c", code]
    return min(float(subprocess.check_output(command, env=environment)) for _ in range(5))


def main(show: Callable[[str], None] = print) -> None:
    show(f"import beyond numpy and onnxruntime: {import_milliseconds():.0f} ms\n")
    show(f"{'milliseconds of Python per token':32s}{'50257 ids':>12s}{'4096 ids':>12s}")
    setups = [(InstantDecoder(size), wide_tokenizer(size)) for size in (50257, 4096)]
    for name, options in OPTIONS.items():
        figures = [milliseconds(decoder, tokenizer, options) for decoder, tokenizer in setups]
        show(f"{name:32s}" + "".join(f"{figure:12.3f}" for figure in figures))
    show(f"\n{'lookup':32s}{'passes/token':>14s}{'accepted':>10s}{'cost':>8s}")
    for name, script, prompt_length in texts():
        plain, _ = lookup_figures(script, prompt_length, 0)
        fed, stats = lookup_figures(script, prompt_length, "auto")
        per_token = stats.passes / stats.tokens
        show(f"{name:32s}{per_token:14.2f}{stats.accept_rate:10.0%}{fed / plain:8.3f}")


if __name__ == "__main__":
    main()
