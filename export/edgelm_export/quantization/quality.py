"""How much a smaller graph loses: perplexity and top-1 agreement with the float32 graph on a text.

The text is the user's, or the sample beside this module (prose and code, independent of any tokenizer); for
a model without a tokenizer it is drawn from the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.decoder import Decoder
from edgelm_runtime.generation.logprobs import log_softmax
from edgelm_runtime.generation.loop import generate_ids
from edgelm_runtime.model_file.metadata import ModelFile

SAMPLE = Path(__file__).with_name("evaluation.txt")
FITTING = Path(__file__).with_name("calibration.txt")
WINDOW = 256  # tokens in a pass
LARGEST_TEXT = 4096  # tokens that are used of a longer text
# Rows drawn from a model without a tokenizer, to measure on and to fit rounding on, and their length: a row is
# recomputed for each token, so many short ones are the quicker way to as many tokens.
DRAWN, DRAWN_LENGTH = 8, 128
FITTED, FITTED_LENGTH = 16, 48

Ids = NDArray[np.int64]


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
class Answers:
    """What a graph says about a text: log-probability and greatest token at each position."""

    logprobs: NDArray[np.float64]
    choices: Ids


@dataclass(frozen=True)
class Calibration:
    """A text as windows of ids, and what to call it."""

    name: str
    windows: Sequence[Ids]

    def answers(self, decoder: Decoder) -> Answers:
        """Run `decoder` over all windows."""
        logprobs, choices = [], []
        for window in self.windows:
            (logits,) = decoder([window[:-1]], [len(window) - 1])
            logprobs.append(log_softmax(logits)[np.arange(len(window) - 1), window[1:]])
            choices.append(logits.argmax(-1))
        return Answers(np.concatenate(logprobs), np.concatenate(choices))


def calibration(model: ModelFile, decoder: Decoder, text: Path | None = None) -> Calibration:
    """The text to measure on. Raises OptionError where it cannot be read or is too short."""
    if model.tokenizer is None:
        if text is not None:
            raise OptionError("the model has no tokenizer for a calibration text", "leave the text out")
        return Calibration("text drawn from the model", _drawn(decoder, range(DRAWN), DRAWN_LENGTH))
    source = text or SAMPLE
    ids = _ids(model, source)
    windows = _cut(model, ids[:LARGEST_TEXT])
    if not windows:
        raise OptionError(f"the calibration text {source} has {len(ids)} tokens", "give a longer one")
    return Calibration("the built-in sample" if text is None else text.name, windows)


def fitting_windows(model: ModelFile, decoder: Decoder, text: Path | None = None) -> list[Ids]:
    """Windows of ids to fit rounding on, none of which `calibration` measures: otherwise the measure would flatter.

    What is left of the user's text, then `calibration.txt`, of the same kinds as the sample; without a tokenizer,
    other draws from the model.
    """
    if model.tokenizer is None:
        return _drawn(decoder, range(DRAWN, DRAWN + FITTED), FITTED_LENGTH)
    rest = _ids(model, text)[LARGEST_TEXT:] if text is not None else np.zeros(0, np.int64)
    return _cut(model, np.append(rest, _ids(model, FITTING))[:LARGEST_TEXT])


def _ids(model: ModelFile, source: Path) -> Ids:
    assert model.tokenizer is not None
    try:
        content = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"cannot read the calibration text {source}: {error}", "give a UTF-8 file"
        ) from error
    return np.array(model.tokenizer.encode(content), np.int64)


def _cut(model: ModelFile, ids: Ids) -> list[Ids]:
    """`ids` in windows as long as a pass, of two ids at least."""
    start = np.array([] if model.begin_id is None else [model.begin_id], np.int64)
    size = min(WINDOW, model.context_length)
    windows = [np.append(start, ids[at : at + size]) for at in range(0, len(ids), size)]
    return [window for window in windows if len(window) > 1]


def compare_answers(text: Calibration, reference: Answers, found: Answers) -> Quality:
    """Both graphs' answers to the same `text` as one `Quality`."""
    better, worse = (float(np.exp(-answers.logprobs.mean())) for answers in (reference, found))
    return Quality(
        text.name, len(found.logprobs), better, worse if math.isfinite(worse) else math.inf,
        100 * (worse / better - 1) if math.isfinite(worse) else math.inf,
        float((reference.choices == found.choices).mean()),
    )  # fmt: skip


def _drawn(decoder: Decoder, seeds: range, longest: int) -> list[Ids]:
    length = min(longest, max(2, decoder.context_length))
    starts = np.random.default_rng(2).integers(0, decoder.vocab_size, seeds.stop).tolist()
    rows = [
        [start, *generate_ids(decoder, [start], max_new_tokens=length - 1, temperature=1.0, seed=seed)]
        for seed, start in zip(seeds, starts[seeds.start :], strict=True)
    ]
    return [np.array(row, np.int64) for row in rows]
