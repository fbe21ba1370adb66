"""Does a GPU compute what the CPU computes, and how fast? `python tests/benchmarks/cuda.py [--model FILE]...`.

Wants onnxruntime-gpu 1.28 or later and a GPU, and says in one line that it skips without them. Given files only need
the runtime; otherwise a small model and one of GPT-2's size are exported for CUDA, which needs PyTorch. For each file:

1. `verify`: the golden vectors in the file.
2. Logits of whole windows, on the device against the CPU.
3. Logits from the cache, in pieces, alone and in batches, against those of whole windows.
4. Tokens from the cache against those without, greedy, sampled, by lookup, several samples of a prompt.
5. On which provider each operator runs.
6. A table of prefill and decoding on both. No time is asserted.

`--provider cpu` runs all of it without a GPU, the CPU against itself: a check of this script.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / part) for part in (".", "export", "runtime")]

from edgelm_runtime import load  # noqa: E402
from edgelm_runtime.engine.graph_inputs import empty_cache  # noqa: E402
from edgelm_runtime.engine.kv_buffers import cache_device  # noqa: E402
from edgelm_runtime.engine.providers import choose_providers  # noqa: E402
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder  # noqa: E402
from edgelm_runtime.engine.session import Session  # noqa: E402
from edgelm_runtime.errors import EdgelmError, ProviderError  # noqa: E402
from edgelm_runtime.generation.decoder import Decoder  # noqa: E402
from edgelm_runtime.loading import choose_decoder  # noqa: E402
from edgelm_runtime.model_file.interface import TensorInfo  # noqa: E402
from edgelm_runtime.model_file.metadata import read_model_file  # noqa: E402
from edgelm_runtime.reports.benchmark import benchmark  # noqa: E402
from edgelm_runtime.reports.verify import verify  # noqa: E402

Ids = NDArray[np.int64]
Check = tuple[bool, str]  # whether it holds, and what was found

TOLERANCE = 1e-3
"""Of the largest logit: what golden vectors are allowed too, since other processors add up in another order."""
LENGTHS = (1, 2, 7, 33, 128)
SIZES: dict[str, dict[str, Any]] = {
    "small, grouped heads": {
        "vocab_size": 1000, "context_length": 256, "width": 128, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
        "position": "rotary", "norm": "rmsnorm", "activation": "silu", "gated_mlp": True,
    },
    "GPT-2": {
        "vocab_size": 50257, "context_length": 1024, "width": 768, "num_layers": 12, "num_heads": 12,
    },
}  # fmt: skip
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 7},
    "lookup": {"lookup": 5},
    "three samples": {"temperature": 1.0, "seed": 8, "n": 3},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--model", type=Path, action="append", metavar="FILE", help="instead of those made here"
    )
    parser.add_argument("--provider", default="cuda")
    parser.add_argument("--rounds", type=int, default=3, help="of each time; the median counts")
    options = parser.parse_args()
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        try:
            choose_providers(options.provider)
            for path in options.model or exported(Path(folder)):
                Session(path, options.provider).close()
                holds &= report(path, options.provider, options.rounds)
        except ProviderError as error:
            print(f"skipped, nothing was checked: {error.problem}")
            return 0
    return 0 if holds else 1


def exported(folder: Path) -> Iterator[Path]:
    """Models of SIZES with random weights, one after the other."""
    import torch

    from edgelm.checkpoint import Checkpoint
    from edgelm.config import ModelConfig
    from edgelm.model import Transformer
    from edgelm_export import export_checkpoint

    for name, sizes in SIZES.items():
        torch.manual_seed(0)
        path = folder / f"{name}.onnx"
        model = Transformer(ModelConfig(**sizes))
        export_checkpoint(Checkpoint(model, None), path, kv_cache=True, target="cuda")
        yield path


def report(path: Path, provider: str, rounds: int) -> bool:
    """Print what is found of one file; whether all checks hold."""
    print(f"{path.name} on {provider}")
    holds = True
    for good, line in checks(path, provider):
        print(f"  {'ok' if good else 'FAILED'}: {line}", flush=True)
        holds &= good
    for line in [*placement(path, provider, Path(tempfile.gettempdir())), *speed(path, provider, rounds)]:
        print(f"  {line}", flush=True)
    return holds


def checks(path: Path, provider: str) -> Iterator[Check]:
    """All comparisons that the file allows; one that cannot run is one that fails."""
    with_cache = (from_the_cache, tokens) if "cache_length" in inputs(path) else ()
    for check in (replayed, whole_windows, *with_cache):
        try:
            yield from check(path, provider)
        except ProviderError:
            raise
        except EdgelmError as error:
            yield False, f"{check.__name__}: {error}"


def replayed(path: Path, provider: str) -> Iterator[Check]:
    yield True, f"verify: {verify(path, provider)}"


def whole_windows(path: Path, provider: str) -> Iterator[Check]:
    results = []
    for name in ("cpu", provider):
        session = Session(path, name)
        plain = recompute(session, path)
        rows = random_rows(plain, LENGTHS)
        alone = [plain([row], [len(row)])[0] for row in rows]
        results.append([*alone, *plain(rows, [1] * len(rows))])
        session.close()
    yield compared("whole windows, alone and in a batch, against the CPU", *results)


def from_the_cache(path: Path, provider: str) -> Iterator[Check]:
    session = Session(path, provider)
    cached = choose_decoder("cached", session, read_model_file(session, str(path)), str(path))
    plain = recompute(session, path)
    row = random_rows(plain, (40,))[0]
    for pieces in ([1] * len(row), [len(row) // 2, len(row) - len(row) // 2], [5] * 8):
        ends = np.cumsum(pieces)
        expected = [plain([row[:end]], [piece])[0] for end, piece in zip(ends, pieces, strict=True)]
        found = [cached([row[:end]], [piece])[0] for end, piece in zip(ends, pieces, strict=True)]
        cached.clear()  # type: ignore[attr-defined]
        yield compared(f"from the cache in {len(pieces)} pieces, against whole windows", expected, found)
    texts = random_rows(plain, (20, 33, 27))
    expected, found = [], []
    for step in range(10, 20):  # rows of different lengths, a token each at a time; then the first has left
        rows = [text[: len(text) - 20 + step] for text in texts[step > 15 :]]
        expected += plain(rows, [1] * len(rows))
        found += cached(rows, [1] * len(rows))
    yield compared("a batch of rows of different lengths from the cache", expected, found)
    yield True, f"the cache lies in memory of {cache_device(session) or 'the process'}"
    session.close()


def tokens(path: Path, provider: str) -> Iterator[Check]:
    prompt = [7, 8, 9, 10, 7, 8, 9, 10, 7, 8]
    with load(path, provider, decode="recompute") as lm:
        wanted = {name: generated(lm, prompt, options) for name, options in SAMPLING.items()}
    with load(path, provider, decode="cached") as lm:
        for name, options in SAMPLING.items():
            yield generated(lm, prompt, options) == wanted[name], f"tokens from the cache and without, {name}"


def generated(lm: Any, prompt: Sequence[int], options: dict[str, Any]) -> list[list[int]]:
    found = lm.generate(prompt, max_new_tokens=min(64, lm.info.context_length - len(prompt)), **options)
    return [one.token_ids for one in (found if isinstance(found, list) else [found])]


def inputs(path: Path) -> dict[str, TensorInfo]:
    session = Session(path, "cpu", optimize=False)
    try:
        return session.inputs
    finally:
        session.close()


def recompute(session: Session, path: Path) -> Decoder:
    info = read_model_file(session, str(path))
    return RecomputeDecoder(session, info.context_length, info.vocab_size)


def random_rows(decoder: Decoder, lengths: Sequence[int]) -> list[Ids]:
    random = np.random.default_rng(0)
    return [random.integers(0, decoder.vocab_size, min(n, decoder.context_length)) for n in lengths]


def compared(what: str, expected: Sequence[NDArray[Any]], found: Sequence[NDArray[Any]]) -> Check:
    """Largest error in units of the largest logit."""
    largest = max(float(np.abs(one).max()) for one in expected)
    error = max(float(np.abs(a - b).max()) for a, b in zip(expected, found, strict=True)) / largest
    return error <= TOLERANCE, f"{what}: off by {error:.1e} of the largest logit ({TOLERANCE:.0e} allowed)"


def placement(path: Path, provider: str, folder: Path) -> Iterator[str]:
    """What runs where, as onnxruntime's profile has it: copies between devices are nodes as well."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_profiling, options.log_severity_level = True, 3
    options.profile_file_prefix = str(folder / "edgelm-cuda")
    raw = ort.InferenceSession(str(path), options, providers=choose_providers(provider))
    ids = np.zeros((1, 4), np.int64)
    raw.run(["logits"], {"input_ids": ids, **empty_cache(inputs(path), *ids.shape)})
    profile = Path(raw.end_profiling())
    events = [event for event in json.loads(profile.read_text()) if event.get("cat") == "Node"]
    profile.unlink()
    counts: dict[str, Counter[str]] = {}
    for about in (event["args"] for event in events if event["name"].endswith("_kernel_time")):
        counts.setdefault(about["provider"], Counter())[about["op_name"]] += 1
    for name, operators in counts.items():
        kinds = ", ".join(f"{count} {operator}" for operator, count in operators.most_common())
        yield f"{name.removesuffix('ExecutionProvider')} runs {operators.total()} nodes: {kinds}"


def speed(path: Path, provider: str, rounds: int) -> Iterator[str]:
    yield f"{'':24}" + "".join(f"{heading:>18}" for heading in ("prefill", "decode"))
    for name in dict.fromkeys(("cpu", provider)):
        for decode in ("recompute", "auto"):
            (figures,) = benchmark([path], provider=name, decode=decode, rounds=rounds)
            if decode == "auto" and figures.decode == "recompute":
                continue
            for length in sorted({*figures.prefill, *figures.step}):
                prefill, step = figures.prefill.get(length), figures.step.get(length)
                cells = (
                    "-" if prefill is None else f"{length / prefill:,.0f} tokens/s",
                    "-" if step is None else f"{1 / step:,.0f} tokens/s",
                )
                label = f"{figures.provider}, {figures.decode}, {length}"
                yield f"{label:<24}" + "".join(f"{cell:>18}" for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
