"""The evaluation text, which quality is measured on, and the calibration text, which rounding is fitted to.

They never share a token, or the measure would flatter. Both come from the user's text; from chats (JSON lines with
`messages`, rendered by the model's own template, every second one for either); or from the two samples next to this
module (prose and code). Where the model has no tokenizer, or one that cannot encode the samples (the characters of a
single book, say), they are drawn from the model itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgelm_runtime.arrays import Ids
from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.decoder import Decoder
from edgelm_runtime.generation.loop import generate_ids
from edgelm_runtime.model_file.metadata import ModelFile
from edgelm_runtime.prompts import Prompts, TemplateOptions

EVALUATION = Path(__file__).with_name("evaluation.txt")
CALIBRATION = Path(__file__).with_name("calibration.txt")
CHATS = ".jsonl"
WINDOW = 256  # tokens in a pass
LARGEST_TEXT = 4096  # tokens that are used of a longer text
# Rows drawn from a model, for evaluation and for calibration, and their length: a row is recomputed for each token, so
# many short ones are the quicker way to as many tokens.
EVALUATION_ROWS, EVALUATION_LENGTH = 8, 128
CALIBRATION_ROWS, CALIBRATION_LENGTH = 16, 48
NOTHING: Ids = np.zeros(0, np.int64)


@dataclass(frozen=True)
class EvaluationText:
    """Windows of ids, and what to call them."""

    name: str
    windows: Sequence[Ids]


def evaluation_text(model: ModelFile, decoder: Decoder, text: Path | None = None) -> EvaluationText:
    """The beginning of `text`, or of the built-in one. Raises OptionError where it cannot be read or is too short."""
    if text is None:
        windows = _cut(model, _built_in(model, EVALUATION)[:LARGEST_TEXT])
        if windows:
            return EvaluationText("the built-in sample", windows)
        rows = _drawn(decoder, range(EVALUATION_ROWS), EVALUATION_LENGTH)
        return EvaluationText("text drawn from the model", rows)
    ids, _ = _parts(model, text)
    windows = _cut(model, ids[:LARGEST_TEXT])
    if not windows:
        raise OptionError(f"the text {text} has {len(ids)} tokens", "give a longer one")
    return EvaluationText(text.name, windows)


def calibration_windows(model: ModelFile, decoder: Decoder, text: Path | None = None) -> list[Ids]:
    """Windows of ids that are not in the evaluation text.

    What is left of the user's text, then the built-in one, or else other draws from the model.
    """
    rest = NOTHING if text is None else _parts(model, text)[1]
    built_in = _built_in(model, CALIBRATION)
    windows = _cut(model, np.append(rest, built_in)[:LARGEST_TEXT])
    if len(built_in) or len(rest) >= LARGEST_TEXT:
        return windows
    seeds = range(EVALUATION_ROWS, EVALUATION_ROWS + CALIBRATION_ROWS)
    return windows + _drawn(decoder, seeds, CALIBRATION_LENGTH)


def _parts(model: ModelFile, text: Path) -> tuple[Ids, Ids]:
    """The ids of a user's text for evaluation, and those for calibration."""
    if text.suffix != CHATS:
        ids = _ids(model, text)
        return ids[:LARGEST_TEXT], ids[LARGEST_TEXT:]
    chats = chat_ids(model, text)
    evaluation, calibration = chats[::2], chats[1::2]
    return np.concatenate(evaluation), np.concatenate(calibration or [NOTHING])


def chat_ids(model: ModelFile, source: Path) -> list[Ids]:
    """The ids of each chat in a file of JSON lines, as the runtime renders it.

    Raises OptionError where a line has no messages, or the model's template refuses them.
    """
    prompts, rendered = Prompts(model), []
    remedy = "give a chat with messages per line"
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the chats {source}: {error}", remedy) from error
    for number, line in enumerate(lines, start=1):
        try:
            chat = json.loads(line)
            messages, tools = chat["messages"], chat.get("tools")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise OptionError(f"{source}, line {number}, is no chat: {error!r}", remedy) from error
        options: TemplateOptions = {"tools": tools} if tools else {}
        rendered.append(np.array(prompts.whole_chat(messages, options), np.int64))
    if not rendered:
        raise OptionError(f"there is no chat in {source}", remedy)
    return rendered


def _built_in(model: ModelFile, source: Path) -> Ids:
    """The ids of a sample that ships with edgelm; none where the model cannot encode it."""
    try:
        return _ids(model, source)
    except OptionError:
        return NOTHING


def _ids(model: ModelFile, source: Path) -> Ids:
    if model.tokenizer is None:
        raise OptionError(f"the model has no tokenizer for the text {source}", "leave the text out")
    try:
        content = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read the text {source}: {error}", "give a UTF-8 file") from error
    return np.array(model.tokenizer.encode(content), np.int64)


def _cut(model: ModelFile, ids: Ids) -> list[Ids]:
    """`ids` in windows as long as a pass, of two ids at least."""
    start = np.array([] if model.begin_id is None else [model.begin_id], np.int64)
    size = min(WINDOW, model.context_length)
    windows = [np.append(start, ids[at : at + size]) for at in range(0, len(ids), size)]
    return [window for window in windows if len(window) > 1]


def _drawn(decoder: Decoder, seeds: range, longest: int) -> list[Ids]:
    """A row for each of `seeds`, which begins with a token of its own."""
    length = min(longest, max(2, decoder.context_length))
    starts = np.random.default_rng(2).integers(0, decoder.vocab_size, seeds.stop).tolist()
    rows = [
        [start, *generate_ids(decoder, [start], max_new_tokens=length - 1, temperature=1.0, seed=seed)]
        for seed, start in zip(seeds, starts[seeds.start :], strict=True)
    ]
    return [np.array(row, np.int64) for row in rows]
