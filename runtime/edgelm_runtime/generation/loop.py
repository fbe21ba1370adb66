"""The one generation loop: window, logits, sample, stop, repeat.

Every front end uses it, with any decoder: the command line, the Python interface, PyTorch in the tests.
`run` advances a batch of rows, a pass at a time, and yields a `Piece` per token. Rows that are finished
leave the batch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.batch import Batch, check_context, interrupted, refusal, unfinished
from edgelm_runtime.generation.decoder import Decoder, slots_of
from edgelm_runtime.generation.options import Limits, TextOptions, split_options
from edgelm_runtime.generation.results import ContextWarning, Piece, Stats
from edgelm_runtime.generation.sampler import Sampler
from edgelm_runtime.generation.sequence import Row
from edgelm_runtime.validation import check_prompt


def run(decoder: Decoder, rows: Sequence[Row], limits: Limits, stats: Stats | None = None) -> Iterator[Piece]:
    """Advance `rows` until each is finished, yielding a piece per token; fills `stats` along the way."""
    stats = stats if stats is not None else Stats()
    started = time.perf_counter()
    context = decoder.context_length
    stats.prompt_tokens += sum(row.prompt_length for row in rows)
    check_context(rows, limits, context)
    for piece in [refusal(row, context) for row in rows]:
        if piece is not None:
            yield _told(piece, limits)
    with slots_of(decoder, [row.ids for row in rows]) as slots:
        batch = Batch(decoder, slots)
        for row in unfinished(rows):
            batch.join(row)
        while active := unfinished(rows):
            if reason := interrupted(limits, started):
                for row in active:
                    yield _told(row.finish(reason), limits)
                break
            _tell_sliding(active, limits, context)
            advanced = batch.step()
            stats.passes += 1
            for row, pieces in advanced:
                for piece in pieces:
                    stats.tokens += piece.token_id is not None
                    stats.seconds = time.perf_counter() - started
                    stats.first_token_seconds = stats.first_token_seconds or stats.seconds
                    yield _told(piece, limits)
                stats.drafted += row.drafted
                stats.accepted += row.accepted
                if row.finish_reason:
                    batch.leave(row)
    stats.seconds = time.perf_counter() - started


def _told(piece: Piece, limits: Limits) -> Piece:
    if limits.on_token is not None:
        limits.on_token(piece)
    return piece


def _tell_sliding(rows: Sequence[Row], limits: Limits, context: int) -> None:
    if limits.overflow == "slide" and any(row.length == context + 1 > row.prompt_length for row in rows):
        warnings.warn(
            f"the context of {context} tokens is full: the model goes on with the last {context}",
            ContextWarning,
            stacklevel=4,
        )


def generate_ids(
    decoder: Decoder, prompt: Sequence[int], end_ids: Sequence[int] = (), **options: Any
) -> list[int]:
    """Token ids that continue `prompt` (at least one id). `options` are those of `Sampling` and `Limits`.

    Raises OptionError for an option or id that cannot be used, NumericsError for logits that are not finite.
    """
    sampling, limits, text = split_options(options)
    if text != TextOptions():
        raise OptionError("ids have no text to constrain or to read", "use LanguageModel.generate")
    sampling.check_ids(decoder.vocab_size)
    if len(limits.reference):
        check_prompt(limits.reference, decoder.vocab_size)
    row = Row(check_prompt(prompt, decoder.vocab_size), Sampler(sampling), limits, end_ids)
    for _ in run(decoder, [row], limits):
        pass
    return row.new_ids
