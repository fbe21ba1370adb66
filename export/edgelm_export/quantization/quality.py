"""How much a smaller graph loses: perplexity, and top-1 agreement with the float32 graph, on the evaluation text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_export.progress import Progress, Report, quiet
from edgelm_export.quantization.texts import EvaluationText
from edgelm_runtime.arrays import Floats, Ids
from edgelm_runtime.generation.decoder import Decoder
from edgelm_runtime.generation.logprobs import log_softmax

LOGITS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Quality:
    """Float32 and smaller graph on the same tokens. `ppl_increase_pct` may be negative."""

    text: str
    tokens: int
    perplexity_fp32: float
    perplexity: float
    ppl_increase_pct: float
    top1_agreement: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4g} against {self.perplexity_fp32:.4g} in fp32 "
            f"({self.ppl_increase_pct:+.2f}%), top-1 agreement {self.top1_agreement:.1%} "
            f"over {self.tokens} tokens of {self.text}"
        )


@dataclass(frozen=True)
class Bound:
    """What a smaller graph may lose: perplexity, and agreement with the choices of fp32, both in percent."""

    ppl_increase_pct: float
    agreement_pct: float

    def excess(self, quality: Quality) -> tuple[float, float]:
        """By how much `quality` exceeds the one and falls short of the other; zeros where it is good enough."""
        return (
            max(0.0, quality.ppl_increase_pct - self.ppl_increase_pct),
            max(0.0, self.agreement_pct - 100 * quality.top1_agreement),
        )

    def holds(self, quality: Quality) -> bool:
        """Whether nothing is exceeded."""
        return not any(self.excess(quality))


@dataclass(frozen=True)
class Answers:
    """What a graph says about a text: log-probability of each token, and the greatest one, at each position."""

    logprobs: NDArray[np.float64]
    choices: Ids


def answers(logits: Iterable[Floats], text: EvaluationText) -> Answers:
    """What the `logits` (n, vocab) after all tokens but the last of each window of `text` say."""
    logprobs, choices = [], []
    for found, window in zip(logits, text.windows, strict=True):
        logprobs.append(_logprobs(found, window[1:]))
        choices.append(found.argmax(-1))
    return Answers(np.concatenate(logprobs), np.concatenate(choices))


def decoded(decoder: Decoder, text: EvaluationText, report: Report = quiet) -> Iterator[Floats]:
    """What `answers` asks for, from a decoder."""
    progress = Progress(report, "evaluation text", len(text.windows))
    for window in text.windows:
        yield decoder([window[:-1]], [len(window) - 1])[0]
        progress.step()


def _logprobs(logits: Floats, targets: Ids) -> NDArray[np.float64]:
    """Log-probabilities (n,) of `targets` (n,), a few rows of `logits` (n, vocab) at a time: they are widened."""
    rows = max(1, LOGITS_AT_ONCE // logits.shape[1])
    parts = [
        log_softmax(logits[start : start + rows])[
            np.arange(len(targets[start : start + rows])), targets[start : start + rows]
        ]
        for start in range(0, len(targets), rows)
    ]
    return np.concatenate(parts)


def compare_answers(text: EvaluationText, reference: Answers, found: Answers) -> Quality:
    """Both graphs' answers to the same `text` as one `Quality`."""
    better, worse = (float(np.exp(-each.logprobs.mean())) for each in (reference, found))
    return Quality(
        text.name, len(found.logprobs), better, worse if math.isfinite(worse) else math.inf,
        100 * (worse / better - 1) if math.isfinite(worse) else math.inf,
        float((reference.choices == found.choices).mean()),
    )  # fmt: skip
