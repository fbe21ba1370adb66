"""Chats as what a run learns from: rendered by the model's own template, one conversation per row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgelm.checkpoint import HELD_OUT, Checkpoint, replaced_folder
from edgelm.data import shards
from edgelm.data.documents import document_key
from edgelm.data.vocabulary import train_vocabulary
from edgelm.finetuning.chats import Chat, chats_in
from edgelm.finetuning.dpo import Pairs
from edgelm.finetuning.rendering import Renderer, Row
from edgelm.finetuning.rows import ChatRows, HeldOutRows, ShuffledRows, save_rows
from edgelm.finetuning.templates import with_template
from edgelm.model import generate
from edgelm.training.config import TrainingConfig
from edgelm.training.material import Material
from edgelm.training.report import Reporter
from edgelm.training.run_folder import RunFolder
from edgelm.training.text import STANDARD_INPUT, Corpus, frame_of, refuse_other_data, reused
from edgelm_runtime.errors import ConfigError, DataError, OptionError
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

SIDES = "sides.npy"
_MOST_HELD_OUT = 64
"""Chats that travel with a checkpoint."""


@dataclass
class _Counts:
    chats: int = 0
    cut: int = 0


def prepare_rows(
    corpus: Corpus,
    config: TrainingConfig,
    folder: RunFolder,
    start: Checkpoint | None,
    context: int,
    resume: bool,
    reporter: Reporter,
) -> str:
    """Render all chats, or find them rendered. Returns their fingerprint."""
    tokenizer, generation = _speaker(corpus, config, start, resume, reporter)
    known = list(folder.tokens.iterdir()) if folder.tokens.is_dir() else []
    digests = shards.content_digests(corpus.files, known)
    fingerprint = shards.fingerprint(
        corpus.files, digests, corpus.reading.encoding, corpus.reading.errors, config.skip_bad, tokenizer.digest,
        config.holdout, generation, config.loss, config.objective, context,
    )  # fmt: skip
    built = folder.tokens / fingerprint
    if reused(built, corpus, resume, reporter):
        return fingerprint
    if resume:
        refuse_other_data(folder, fingerprint)
    renderer, counts = Renderer.of(tokenizer, generation, config.loss == "all"), _Counts()
    with replaced_folder(built) as new:
        (new / shards.TOKENIZER).write_text(json.dumps(tokenizer.to_dict()), encoding="utf-8")
        sides: list[int] = []
        with (new / HELD_OUT).open("w", encoding="utf-8") as held_out:

            def all_rows() -> Iterator[Row]:
                kept: set[str] = set()
                for chat, rows in _rendered(corpus, renderer, config, context, counts, reporter):
                    text = json.dumps(chat.to_dict(), ensure_ascii=False)
                    encoded = text.encode(errors="replace")
                    side = int(document_key(encoded, len(encoded)) < config.holdout * 2**64)
                    if side and text not in kept and len(kept) < _MOST_HELD_OUT:
                        kept.add(text)
                        held_out.write(text + "\n")
                    sides.extend([side] * len(rows))
                    yield from rows

            save_rows(new, all_rows())
        np.save(new / SIDES, np.asarray(sides, np.int8))
        index = {
            "tasks": [], "skipped": corpus.reading.bad, "files": digests, "generation": generation,
            "chats": counts.chats, "cut": counts.cut,
        }  # fmt: skip
        (new / shards.INDEX).write_text(json.dumps(index), encoding="utf-8")
        if corpus.piped is not None:
            corpus.piped.replace(new / STANDARD_INPUT)
    return fingerprint


def _speaker(
    corpus: Corpus, config: TrainingConfig, start: Checkpoint | None, resume: bool, reporter: Reporter
) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer and the generation defaults of the model to teach, given or new."""
    if start is not None:
        if start.tokenizer is None:
            raise ConfigError(
                f"{config.init_from} has no tokenizer, and chats are text", "name one with --tokenizer"
            )
        tokenizer, generation = start.tokenizer, dict(start.generation)
    else:
        if config.tokenizer != "bpe":
            tokenizer = load_tokenizer(config.tokenizer)
        else:
            reporter.note("training the tokenizer")
            tokenizer = train_vocabulary(_texts(corpus), config.vocab_size)
        end = frame_of(tokenizer, None).end
        generation = {"end_ids": [] if end is None else [end]}
    if config.chat_template and not resume:
        return with_template(tokenizer, generation, config.chat_template)
    return tokenizer, generation


def _texts(corpus: Corpus) -> Iterator[str]:
    reading = replace(corpus.reading, bad=[], skipped=[])
    for piece in corpus.pieces:
        for _, chat in chats_in(piece, reading):
            yield from (
                message["content"] for message in chat.messages if isinstance(message.get("content"), str)
            )


def _rendered(
    corpus: Corpus,
    renderer: Renderer,
    config: TrainingConfig,
    context: int,
    counts: _Counts,
    reporter: Reporter,
) -> Iterator[tuple[Chat, list[Row]]]:
    """Each chat with its rows, cut to the last `context` + 1 tokens; two rows, for dpo the chosen answer first."""
    pieces, done = corpus.pieces, 0
    total = sum(piece.stop - piece.start for piece in pieces)
    for piece in pieces:
        for where, chat in chats_in(piece, corpus.reading):
            try:
                rows = _rows_of(chat, renderer, config, where)
            except OptionError as error:
                corpus.reading.leave_out_record(DataError(f"{where}: {error.problem}", error.remedy))
                continue
            except DataError as error:
                corpus.reading.leave_out_record(error)
                continue
            counts.chats += 1
            counts.cut += any(len(row.ids) > context + 1 for row in rows)
            yield chat, [Row(row.ids[-context - 1 :], row.counted[-context - 1 :]) for row in rows]
        done += piece.stop - piece.start
        reporter.preparing("rendering", done, total)


def _rows_of(chat: Chat, renderer: Renderer, config: TrainingConfig, where: str) -> list[Row]:
    if config.objective == "likelihood":
        rows = [row for row in renderer.rows(chat.messages, chat.tools) if any(row.counted[1:])]
        if not rows:
            raise DataError(f"{where}, has nothing to learn from", "give the assistant something to say")
        return rows
    if chat.rejected is None:
        raise DataError(
            f"{where}, has no rejected answer, and --objective dpo learns from pairs", "give both"
        )
    last = (
        replace(renderer, everything=False).rows(messages, chat.tools)[-1]
        for messages in (chat.messages, chat.rejected)
    )
    return [_last_answer(row) for row in last]


def _last_answer(row: Row) -> Row:
    """The row with the last run of counted tokens alone, which both rows of a pair have in common."""
    end = max(index for index, counted in enumerate(row.counted) if counted) + 1
    start = end
    while start and row.counted[start - 1]:
        start -= 1
    return Row(row.ids, [start <= index < end for index in range(len(row.ids))])


def spoken_as(folder: Path) -> dict[str, Any]:
    """The generation defaults that the rows of a folder were rendered with."""
    generation: dict[str, Any] = json.loads((folder / shards.INDEX).read_text(encoding="utf-8"))["generation"]
    return generation


def held_out_chats(folder: Path) -> list[dict[str, Any]]:
    """Chats on the held-out side of a folder of rows, for the checkpoint."""
    lines = (folder / HELD_OUT).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def chat_material(
    folder: Path,
    config: TrainingConfig,
    reference: torch.Tensor | None,
    reporter: Reporter,
) -> Material:
    """Rows of the folder, or pairs of them where there is a reference."""
    index = json.loads((folder / shards.INDEX).read_text(encoding="utf-8"))
    rows = ChatRows.load(folder)
    sides = np.load(folder / SIDES)
    source: Any = rows
    if reference is not None:
        source, sides = Pairs(rows, reference), sides[::2]
    numbers = [np.flatnonzero(sides == side).tolist() for side in (0, 1)]
    train, held_out = _both_sides(*numbers, config.holdout)
    if index["skipped"]:
        reporter.note(f"left out {len(index['skipped'])}: {'; '.join(index['skipped'][:3])}")
    if index["cut"]:
        reporter.note(f"{index['cut']} chats are longer than the context, and keep their end")
    what = "pairs" if reference is not None else "rows"
    shared = ", the same, since there is so little" if train == held_out else ""
    reporter.note(
        f"{index['chats']} chats: {len(train)} {what} to learn from, {len(held_out)} held out{shared}"
    )
    about = {
        "chats": index["chats"],
        "rows": len(train),
        "held_out": len(held_out),
        "fingerprint": folder.name,
    }
    return Material(
        ShuffledRows(source, train, config.batch_size, config.seed),
        HeldOutRows(source, held_out),
        folder.name,
        about,
    )


def _both_sides(train: list[int], held_out: list[int], holdout: float) -> tuple[list[int], list[int]]:
    """Both sides with at least one row; few chats can all be on one side by chance."""
    if train and held_out:
        return train, held_out
    every = sorted(train + held_out)
    if len(every) == 1:
        return every, every
    kept = min(max(round(holdout * len(every)), 1), len(every) - 1)
    return every[:-kept], every[-kept:]


def ask(checkpoint: Checkpoint, chat: Mapping[str, Any], most: int = 64) -> tuple[str, str]:
    """The last question of a chat, and what the model answers, greedily."""
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    messages = chat["messages"]
    last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
    renderer = Renderer.of(tokenizer, checkpoint.generation)
    before = messages[:last]
    ids = renderer.prompt(before, chat.get("tools")) if before else list(renderer.begin) or [0]
    made = generate(checkpoint.model, ids, end_ids=renderer.ends, max_new_tokens=most, temperature=0.0)
    known = [token_id for token_id in made if token_id < tokenizer.vocab_size]
    question = before[-1].get("content") if before else ""
    return str(question), tokenizer.decode(known, skip_special=True).strip()
