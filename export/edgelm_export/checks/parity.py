"""Does the graph compute what PyTorch computes? Asked before a file appears, at awkward sizes.

Each case is a batch of rows of token ids. PyTorch sees the rows one by one at their own length; the graph
sees them as a batch, padded on the right, so padding, batching and positions are tested together. Logits
are compared at every position of a row, or at a spread of them where the vocabulary makes that heavy. A
graph with a KV cache is also fed one row in pieces, and two rows of different lengths.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelm.config import ModelConfig
from edgelm_export.files.reader import open_session
from edgelm_export.progress import Progress, Report, quiet
from edgelm_runtime.arrays import Floats, Ids
from edgelm_runtime.engine.graph_inputs import empty_cache, needs_room, padded
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError
from edgelm_runtime.model_file.interface import (
    CACHE_LENGTH,
    INPUT_IDS,
    LOGITS,
    LOGITS_AT,
    past_names,
    present_name,
)
from edgelm_runtime.model_file.metadata import ModelFile

Answer = Callable[[Sequence[tuple[Ids, Ids]]], list[Floats]]
"""Rows of (ids (T), positions (n)) -> logits (n, vocab) of each: what a row alone gives."""

# (batch, length): one token, two, primes, and lengths around powers of two; the context comes on top.
SIZES = ((1, 1), (1, 2), (3, 1), (2, 2), (2, 3), (1, 5), (3, 7), (1, 13), (2, 17), (1, 31), (1, 64), (1, 127))
RAGGED = (1, 11, 2, 23)
# Tokens of the row that is fed to a cache in pieces, in 37 passes, or 19 where each reads gigabytes of weights.
STEPWISE, FEWER_STEPS, LARGE = 20, 8, 5e8
LOGITS_PER_CASE = 1 << 20  # floats, 4 MB: cases are kept while the graph is tried in two ways
# What the longest row may cost: floats in the attention scores of a layer (256 MB), and products of weights
# (some seconds). Models of up to 130 million parameters are checked over 1024 tokens, smaller ones over more.
SCORES_AT_ONCE = 1 << 26
PRODUCTS_AT_ONCE = 1 << 37

# Error allowed by default, in units of the largest logit. Float32 sums of a few thousand products, added up
# in another order, differ by about 1e-6; a graph with rounded activations rounds one in a million otherwise.
TOLERANCE = {"PyTorch": 1e-4, "itself": 1e-2}


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
    graph_optimization: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        optimization = " and ".join(self.graph_optimization)
        return (
            f"{self.cases} batches of up to {self.longest} tokens, graph optimisation {optimization}: "
            f"largest error {self.max_abs_error:.1e}, relative {self.max_rel_error:.1e} (allowed {self.atol:.1e}); "
            f"greedy choices agree at {self.greedy_agreement:.2%} of {self.positions} positions"
        )


@dataclass(frozen=True)
class Case:
    """Rows of ids, positions (B, n) to compare, and the logits (B, n, vocab) that each row alone gives there.

    `pieces` are the lengths that the rows are fed in, with a cache; empty: whole, without one. `paired`:
    pieces of one token are fed together with another row's.
    """

    rows: list[Ids]
    at: Ids
    expected: Floats
    pieces: tuple[int, ...] = ()
    paired: bool = True


def make_cases(
    answer: Answer, sizes: ModelFile, prompts: Sequence[Sequence[int]] = (), kv_cache: bool = False,
    paired: bool = True,
) -> list[Case]:  # fmt: skip
    """Batches of random ids for a model of `sizes`, `prompts`, and rows in pieces for a cache."""
    random = np.random.default_rng(0)
    vocab_size, context = sizes.vocab_size, sizes.context_length
    longest = min(context, _longest(sizes))
    shapes = [[length] * batch for batch, length in SIZES if length < longest]
    shapes += [[min(length, longest) for length in RAGGED], [longest]]
    batches = [[random.integers(0, vocab_size, length) for length in shape] for shape in shapes]
    batches += [[np.array(prompt[:longest], np.int64)] for prompt in prompts]
    planned = [_planned(vocab_size, rows) for rows in batches]
    if kv_cache:
        large = _weights(ModelConfig.from_dict(sizes.config)) > LARGE
        row = random.integers(0, vocab_size, min(FEWER_STEPS if large else STEPWISE, context))
        planned += [_planned(vocab_size, [row], pieces, paired) for pieces in _pieces(len(row))]
    # All at once: a reference too large for the memory goes through its layers once, with every row.
    logits = iter(answer([pair for case in planned for pair in zip(case.rows, case.at, strict=True)]))
    return [replace(case, expected=np.stack([next(logits) for _ in case.rows])) for case in planned]


def _longest(sizes: ModelFile) -> int:
    """The longest row that is checked, where the context is longer."""
    config = ModelConfig.from_dict(sizes.config)
    by_scores = int((SCORES_AT_ONCE / config.num_heads) ** 0.5)
    return max(1, min(by_scores, PRODUCTS_AT_ONCE // _weights(config)))


def _weights(config: ModelConfig) -> int:
    """Weights of the blocks that a token is multiplied by."""
    attention = config.width * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    mlp = config.width * config.mlp_width * (3 if config.gated_mlp else 2)
    return config.num_layers * (attention + mlp * (config.experts_per_token or 1))


def _pieces(length: int) -> Iterator[tuple[int, ...]]:
    """One by one; half, then one by one; halves; quarters."""
    half, quarter = length // 2, length // 4
    yield (1,) * length
    if half:
        yield (half, *(1,) * (length - half))
        yield half, length - half
    if quarter:
        yield quarter, quarter, quarter, length - 3 * quarter


def _planned(vocab_size: int, rows: list[Ids], pieces: tuple[int, ...] = (), paired: bool = True) -> Case:
    """A case whose logits are still to be found."""
    longest = max(map(len, rows))
    count = longest if pieces else max(1, min(longest, LOGITS_PER_CASE // (vocab_size * len(rows))))
    at = np.stack([np.linspace(0, len(row) - 1, count).round().astype(np.int64) for row in rows])
    return Case(rows, at, np.zeros(0, np.float32), pieces, paired)


def compare(
    cases: Sequence[Case],
    open_session: Callable[[bool], Session],
    atol: float | None = None,
    against: str = "PyTorch",
    optimizations: Sequence[bool] = (False, True),
    report: Report = quiet,
) -> ParityReport:
    """Hold a graph against the answers in `cases`, by default with graph optimisation off and on.

    `open_session` is called with whether to optimise. Raises ExportError where an error exceeds `atol`, or
    by default TOLERANCE of the largest logit, and where a logit is not finite.
    """
    largest = max(float(np.abs(case.expected).max()) for case in cases)
    allowed = atol if atol is not None else TOLERANCE[against] * max(1.0, largest)
    worst, relative, agreed, positions = 0.0, 0.0, 0, 0
    progress = Progress(report, "comparing", len(cases) * len(optimizations))
    for optimize in optimizations:
        session = open_session(optimize)
        for case in cases:
            found = _in_pieces(session, case) if case.pieces else _whole(session, case)
            error = float(np.abs(found - case.expected).max())
            if not np.isfinite(error):
                raise ExportError(*_not_finite(case))
            worst = max(worst, error)
            relative = max(relative, error / max(float(np.abs(case.expected).max()), 1e-30))
            agreed += int((found.argmax(-1) == case.expected.argmax(-1)).sum())
            positions += case.at.size
            progress.step()
        session.close()
    result = ParityReport(
        len(cases), positions, max(len(row) for case in cases for row in case.rows),
        worst, relative, allowed, agreed / positions, tuple("on" if used else "off" for used in optimizations),
    )  # fmt: skip
    if worst > allowed:
        raise ExportError(
            f"the graph differs from {against} by {worst:.2e}, and {allowed:.2e} is allowed",
            "please report this model; --atol sets another limit",
        )
    return result


def consistency(path: Path, model: ModelFile, paired: bool, report: Report = quiet) -> ParityReport:
    """Hold a graph against itself: rows one by one, against the same rows in padded batches and in pieces.

    For graphs that round activations: a token's logits must not depend on the rest of its batch. `paired`: whether
    rows with a past may go together.
    """
    alone = open_session(path)

    def answer(rows: Sequence[tuple[Ids, Ids]]) -> list[Floats]:
        progress = Progress(report, "rows alone", len(rows))
        found: list[Floats] = []
        for row, at in rows:
            feeds = {INPUT_IDS: row[None], LOGITS_AT: at[None], **empty_cache(alone.inputs, 1, len(row))}
            found.append(alone.run([LOGITS], feeds)[0][0])
            progress.step()
        return found

    cases = make_cases(answer, model, kv_cache=CACHE_LENGTH in alone.inputs, paired=paired)
    alone.close()
    return compare(
        cases,
        functools.partial(open_session, path),
        against="itself",
        optimizations=(True,),
        report=report,
    )


def _whole(session: Session, case: Case) -> Floats:
    ids = padded(case.rows)
    # Every other case counts positions from the end, which the graph must understand as well.
    at = case.at - ids.shape[1] if ids.shape[1] % 2 else case.at
    feeds = {INPUT_IDS: ids, LOGITS_AT: at, **empty_cache(session.inputs, *ids.shape)}
    logits: Floats = session.run([LOGITS], feeds)[0]
    return logits


def _in_pieces(session: Session, case: Case) -> Floats:
    """Logits (1, T, vocab) of the row of `case`, fed piece by piece to a cache that grows.

    Single tokens go in a batch of two rows whose caches differ in length; longer pieces go alone, as the contract of
    the cache demands.
    """
    (row,) = case.rows
    past = empty_cache(session.inputs, 1, len(row))
    names = past_names(session.inputs)
    # Such a graph writes into a buffer for the whole row, which goes in and out. Others take what is valid of the
    # past, and give that back with the new tokens added.
    whole = needs_room(session.inputs)
    outputs = [LOGITS, *map(present_name, names)]
    found: list[Floats] = []
    start = 0
    for piece in case.pieces:
        at = np.arange(piece)[None]
        feeds = {**past, INPUT_IDS: row[None, start : start + piece], LOGITS_AT: at}
        if case.paired and piece == 1 and start > 1:
            # The second row is the same text one token shorter, so that it is fed its last token again. Its cache
            # still holds that token from the step before, which also shows that what lies after `cache_length` is
            # not read.
            feeds = {
                name: np.concatenate([value, value]) for name, value in feeds.items() if name != LOGITS_AT
            }
            feeds[CACHE_LENGTH] = np.array([start, start - 1])
            feeds[INPUT_IDS] = row[[start, start - 1]][:, None]
        logits, *present = session.run(outputs, feeds)
        if len(logits) == 2:
            # The second row's answer takes the place of the one that the step before gave for the same token: it is
            # compared too, and has the right place in the row.
            found[-1] = np.concatenate([found[-1][:, :-1], logits[1:]], axis=1)
        found.append(logits[:1])
        start += piece
        kept = (value[:1] if whole else value[:1, :, :start] for value in present)
        past = dict(zip(names, kept, strict=True)) | {CACHE_LENGTH: np.array([start])}
    return np.concatenate(found, axis=1)


def _not_finite(case: Case) -> tuple[str, str]:
    if not np.isfinite(case.expected).all():
        return (
            "PyTorch's own logits are not finite",
            "the checkpoint holds NaN or infinite weights; train it again",
        )
    return f"the graph's logits are not finite at length {len(case.rows[0])}", "please report this model"
