"""Golden vectors: a few prompts with what the model answers, so that a file can test itself anywhere.

For each prompt: its text (where there is a tokenizer), its ids, the greedy continuation, and at each step
the largest logits, some spread over the vocabulary, and the logarithm of the sum over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_export.progress import Progress, Report, quiet
from edgelm_runtime.arrays import Floats, Ids
from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.decoder import Decoder
from edgelm_runtime.generation.logprobs import logsumexp
from edgelm_runtime.text.tokenizer import Tokenizer

TEXTS = ("def main(", "Once upon a time", "The 3 rules are:\n\n1. ", "naïve 漢字 🙂\t", "x = [1, 2, 3]\n" * 8)
STEPS = 16
FEWER_STEPS = 4  # after a prompt of more than STEPS tokens, where each costs more
LARGEST, SPREAD = 4, 4  # logits kept per step
LONG = 48  # ids of the prompt made of random ids, which reaches further back than the texts


def golden_prompts(tokenizer: Tokenizer | None, context_length: int, vocab_size: int) -> list[dict[str, Any]]:
    """Prompts (`text` where there is one, `ids`) that leave room for an answer in the context.

    Each text of TEXTS is one, or, where `tokenizer` cannot encode it, random ids in its place.
    """
    longest = max(1, context_length - STEPS)
    random = np.random.default_rng(1)
    prompts: list[dict[str, Any]] = [{"ids": random.integers(0, vocab_size, min(LONG, longest)).tolist()}]
    if tokenizer is None:
        return prompts
    for text in TEXTS:
        ids = _encoded(tokenizer, text)
        if not ids:
            # Some tokenizers know the characters of one book only: then a text made of what they know.
            ids = random.integers(0, vocab_size, min(len(text), longest)).tolist()
            text = tokenizer.decode(ids)
        known = len(ids) <= longest and _encoded(tokenizer, text) == ids
        prompts.append({"text": text, "ids": ids} if known else {"ids": ids[:longest]})
    return prompts


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Nothing where the tokenizer cannot encode `text`."""
    try:
        return tokenizer.encode(text)
    except OptionError:
        return []


NextLogits = Callable[[Sequence[Ids]], list[Floats]]
"""Rows of ids -> the logits (vocab) that follow each of them, by itself."""


def one_by_one(decoder: Decoder) -> NextLogits:
    """What a decoder says of each row alone."""
    return lambda rows: [decoder([row], [1])[0][0] for row in rows]


def golden_vectors(
    following: NextLogits,
    context_length: int,
    prompts: Sequence[dict[str, Any]],
    atol: float,
    report: Report = quiet,
) -> dict[str, Any]:
    """The `edgelm.golden` entry: each prompt with the greedy answer; `atol` is what a logit may be off.

    All prompts go on together, step by step.
    """
    counts = [STEPS if len(prompt["ids"]) <= STEPS else FEWER_STEPS for prompt in prompts]
    rows = [np.array(prompt["ids"], np.int64) for prompt in prompts]
    summaries: list[list[dict[str, Any]]] = [[] for _ in prompts]
    progress = Progress(report, "golden vectors", max(counts))
    for step in range(max(counts)):
        going = [at for at, row in enumerate(rows) if step < counts[at] and len(row) <= context_length]
        for at, logits in zip(going, following([rows[at] for at in going]), strict=True):
            summaries[at].append(_summary(logits))
            rows[at] = np.append(rows[at], int(logits.argmax()))
        progress.step()
    answers = (
        {"tokens": row[len(prompt["ids"]) :].tolist(), "logits": steps}
        for prompt, row, steps in zip(prompts, rows, summaries, strict=True)
    )
    return {
        "atol": atol,
        "prompts": [prompt | answer for prompt, answer in zip(prompts, answers, strict=True)],
    }


def _summary(logits: NDArray[Any]) -> dict[str, Any]:
    largest = np.argsort(-logits, kind="stable")[:LARGEST]
    spread = np.linspace(0, len(logits) - 1, SPREAD).astype(int)
    ids = list(dict.fromkeys([*largest.tolist(), *spread.tolist()]))
    return {
        "ids": ids,
        "values": [_short(logits[token_id]) for token_id in ids],
        "logsumexp": _short(logsumexp(logits)),
    }


def _short(value: float) -> float:
    """Seven digits hold a float32 as far as a comparison needs it."""
    return float(f"{value:.7g}")
