"""Does the graph compute what PyTorch computes? Asked before a file appears, at awkward sizes.

Each case is a batch of rows of token ids. PyTorch sees the rows one by one at their own length; the graph
sees them as a batch, padded on the right, so padding, batching and positions are tested together. Logits
are compared at every position of a row, or at a spread of them where the vocabulary makes that heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgelm.model import Transformer
from edgelm_runtime.decoder import padded
from edgelm_runtime.errors import ExportError
from edgelm_runtime.model_file import ModelFile
from edgelm_runtime.session import Session

Ids = NDArray[np.int64]

# (batch, length): one token, two, primes, and lengths around powers of two; the context comes on top.
SIZES = ((1, 1), (1, 2), (3, 1), (2, 2), (2, 3), (1, 5), (3, 7), (1, 13), (2, 17), (1, 31), (1, 64), (1, 127))
RAGGED = (1, 11, 2, 23)
LOGITS_PER_CASE = 1 << 20  # floats, 4 MB: cases are kept while the graph is tried in two ways
SCORES_AT_ONCE = 1 << 26  # floats: attention scores of one layer at the longest length, 256 MB

# Error allowed by default, in units of the largest logit. Float32 sums of a few thousand products, added up
# in another order, differ by about 1e-6.
# A graph with rounded activations may round one in a million the other way.
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "itself": 1e-2}


@dataclass(frozen=True)
class ParityReport:
    """How a graph compares with PyTorch. Errors are over all logits of all cases; relative ones are in
    units of the largest logit of the case."""

    cases: int
    positions: int
    longest: int
    max_abs_error: float
    max_rel_error: float
    atol: float
    greedy_agreement: float
    graph_optimization: tuple[str, ...] = ("off", "on")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.cases} batches of up to {self.longest} tokens, graph optimisation off and on: largest error "
            f"{self.max_abs_error:.1e}, relative {self.max_rel_error:.1e} (allowed {self.atol:.1e}); "
            f"greedy choices agree at {self.greedy_agreement:.2%} of {self.positions} positions"
        )


@dataclass(frozen=True)
class Case:
    """Rows of ids, positions (B, n) to compare, and PyTorch's logits (B, n, vocab) there."""

    rows: list[Ids]
    at: Ids
    expected: NDArray[np.float32]


def reference_cases(model: Transformer, vocab_size: int, prompts: Sequence[Sequence[int]]) -> list[Case]:
    """PyTorch's answers of `model`, in eval mode, cut to `vocab_size` logits."""
    longest = longest_checked(model.config.context_length, model.config.num_heads)

    @torch.no_grad()
    def answer(row: Ids, at: Ids) -> NDArray[np.float32]:
        device = model.token_embedding.weight.device
        hidden = model.hidden(torch.from_numpy(row).to(device)[None])[0]
        logits = model.logits(hidden[torch.from_numpy(at).to(device)])
        found: NDArray[np.float32] = logits[:, :vocab_size].float().cpu().numpy()
        return found

    return make_cases(answer, vocab_size, longest, prompts)


def longest_checked(context_length: int, num_heads: int) -> int:
    """The longest row of a check: the context, where its attention scores fit into memory."""
    return min(context_length, int((SCORES_AT_ONCE / num_heads) ** 0.5))


def make_cases(
    answer: Callable[[Ids, Ids], NDArray[np.float32]],
    vocab_size: int,
    longest: int,
    prompts: Sequence[Sequence[int]] = (),
) -> list[Case]:
    """Batches of random ids, and `prompts`; `answer` gives the logits of one row at some positions."""
    random = np.random.default_rng(0)
    shapes = [[length] * batch for batch, length in SIZES if length < longest]
    shapes += [[min(length, longest) for length in RAGGED], [longest]]
    batches = [[random.integers(0, vocab_size, length) for length in shape] for shape in shapes]
    batches += [[np.array(prompt[:longest], np.int64)] for prompt in prompts]
    return [_case(answer, vocab_size, rows) for rows in batches]


def _case(answer: Callable[[Ids, Ids], NDArray[np.float32]], vocab_size: int, rows: list[Ids]) -> Case:
    count = max(1, min(max(map(len, rows)), LOGITS_PER_CASE // (vocab_size * len(rows))))
    at = np.stack([np.linspace(0, len(row) - 1, count).round().astype(np.int64) for row in rows])
    return Case(rows, at, np.stack([answer(row, where) for row, where in zip(rows, at, strict=True)]))


def compare(
    cases: Sequence[Case], open_session: Callable[[bool], Session], dtype: str, atol: float | None
) -> ParityReport:
    """Hold a graph against PyTorch, with graph optimisation off and on.

    `open_session` is called with whether to optimise. Raises ExportError where an error exceeds `atol`, or
    by default TOLERANCE of `dtype` times the largest logit, and where a logit is not finite.
    """
    largest = max(float(np.abs(case.expected).max()) for case in cases)
    allowed = atol if atol is not None else TOLERANCE[dtype] * max(1.0, largest)
    worst, relative, agreed, positions = 0.0, 0.0, 0, 0
    for optimize in (False, True):
        session = open_session(optimize)
        for case in cases:
            found = _graph_logits(session, case)
            error = float(np.abs(found - case.expected).max())
            if not np.isfinite(error):
                raise ExportError(*_not_finite(case, dtype))
            worst = max(worst, error)
            relative = max(relative, error / max(float(np.abs(case.expected).max()), 1e-30))
            agreed += int((found.argmax(-1) == case.expected.argmax(-1)).sum())
            positions += case.at.size
        session.close()
    report = ParityReport(
        len(cases), positions, max(len(row) for case in cases for row in case.rows),
        worst, relative, allowed, agreed / positions,
    )  # fmt: skip
    if worst > allowed:
        raise ExportError(
            f"the graph differs from {'itself' if dtype == 'itself' else 'PyTorch'} by {worst:.2e}, "
            f"and {allowed:.2e} is allowed",
            "please report this model; --atol sets another limit",
        )
    return report


def consistency(path: Path, model: ModelFile) -> ParityReport:
    """Hold a graph against itself: rows one by one, against the same rows in padded batches.

    For graphs that round activations: what a token gets must not depend on what stands beside it.
    """
    alone = Session(path, "cpu")

    def answer(row: Ids, at: Ids) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = alone.run(["logits"], {"input_ids": row[None], "logits_at": at[None]})[
            0
        ][0]
        return logits

    longest = longest_checked(model.context_length, int(model.config["num_heads"]))
    cases = make_cases(answer, model.vocab_size, longest)
    alone.close()
    return compare(cases, lambda optimize: Session(path, "cpu", optimize=optimize), "itself", None)


def _graph_logits(session: Session, case: Case) -> NDArray[np.float32]:
    ids = padded(case.rows)
    # Every other case counts positions from the end, which the graph must understand as well.
    at = case.at - ids.shape[1] if ids.shape[1] % 2 else case.at
    feeds = {"input_ids": ids, "logits_at": at}
    logits: NDArray[np.float32] = session.run(["logits"], feeds)[0]
    return logits


def _not_finite(case: Case, dtype: str) -> tuple[str, str]:
    if not np.isfinite(case.expected).all():
        return (
            "PyTorch's own logits are not finite",
            "the checkpoint holds NaN or infinite weights; train it again",
        )
    where = " or ".join(str(len(row)) for row in case.rows[:1])
    if dtype == "fp16":
        return (
            f"numbers above 65504 do not fit fp16: logits are not finite at length {where}",
            "export with --dtype fp32",
        )
    return f"the graph's logits are not finite at length {where}", "please report this model"
