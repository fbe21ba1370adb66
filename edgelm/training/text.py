"""Plain text as what a run learns from: tokenizer, token files, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgelm.checkpoint import Checkpoint, read_origin
from edgelm.data import shards
from edgelm.data.batches import HeldOutWindows, Windows
from edgelm.data.documents import Piece, Reading, cut, taken_as_text
from edgelm.data.files import find_files, save_standard_input, weighted
from edgelm.data.shards import Frame
from edgelm.data.vocabulary import sample_texts, train_vocabulary
from edgelm.training.config import TrainingConfig
from edgelm.training.material import Material
from edgelm.training.report import Reporter
from edgelm.training.run_folder import RunFolder
from edgelm_runtime.atomic_files import TEMPORARY
from edgelm_runtime.engine.threads import default_threads
from edgelm_runtime.errors import CheckpointError, ConfigError
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

STANDARD_INPUT = "stdin.txt"


@dataclass(frozen=True)
class Corpus:
    """The files of a run, and how they are read."""

    files: list[Path]
    reading: Reading
    piped: Path | None = None
    """The copy of standard input among the files, to be kept with the tokens."""

    @property
    def pieces(self) -> list[Piece]:
        """The files in pieces."""
        return list(cut(self.files, self.reading))


def find_corpus(config: TrainingConfig, folder: RunFolder, resume: bool) -> Corpus:
    """The data's files; standard input is one of them, saved when a run starts."""
    reading = Reading(config.field, config.encoding, config.decode_errors == "replace", config.skip_bad)
    piped = None
    if "-" in config.data:
        if resume:
            piped = folder.tokens / _saved_fingerprint(folder) / STANDARD_INPUT
        else:
            piped = folder.tokens / f"{TEMPORARY}{STANDARD_INPUT}"
            save_standard_input(piped)
    names = [str(piped) if name == "-" else name for name in config.data]
    files = find_files(names, config.include, config.exclude)
    return Corpus(weighted(files, config.weight), reading, piped)


def _saved_fingerprint(folder: RunFolder) -> str:
    try:
        return str(read_origin(folder.last)["training"]["corpus"]["fingerprint"])
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder.last} does not say what it learned from", "start anew") from error


def prepare_tokens(
    corpus: Corpus,
    config: TrainingConfig,
    folder: RunFolder,
    start: Checkpoint | None,
    resume: bool,
    reporter: Reporter,
) -> str:
    """Make tokenizer and token files, or find them made. Returns their fingerprint."""
    for path in taken_as_text(dict.fromkeys(corpus.files))[:3]:
        reporter.note(f"{path} looks like JSON lines and is read as plain text; name it .jsonl to read them")
    pieces = corpus.pieces
    known = list(folder.tokens.iterdir()) if folder.tokens.is_dir() else []
    digests = shards.content_digests(corpus.files, known)
    tokenizer = _tokenizer(config, start, pieces, corpus.reading, reporter)
    frame = frame_of(tokenizer, start)
    fingerprint = shards.fingerprint(
        corpus.files, digests, corpus.reading.field, corpus.reading.encoding, corpus.reading.errors,
        config.skip_bad, tokenizer.digest, config.holdout, asdict(frame),
    )  # fmt: skip
    built = folder.tokens / fingerprint
    if reused(built, corpus, resume, reporter):
        return fingerprint
    if resume:
        refuse_other_data(folder, fingerprint)
    shards.build(
        built, pieces, digests, tokenizer, frame, corpus.reading, config.holdout, default_threads(),
        lambda done, total: reporter.preparing("encoding", done, total), keep=corpus.piped,
    )  # fmt: skip
    return fingerprint


def reused(built: Path, corpus: Corpus, resume: bool, reporter: Reporter) -> bool:
    """Whether what is to be made of the data is there already."""
    if not shards.is_built(built):
        return False
    if not resume:
        reporter.note(f"the data is unchanged, so the tokens in {built.parent} are used again")
        if corpus.piped is not None:
            corpus.piped.unlink(missing_ok=True)
    return True


def refuse_other_data(folder: RunFolder, fingerprint: str) -> None:
    """Raise CheckpointError where the data is not that of the run in the folder."""
    if _saved_fingerprint(folder) != fingerprint:
        raise CheckpointError(
            f"the data of {folder.path} has changed since the run was saved",
            "restore it, or start anew with --overwrite or --init-from",
        )


def _tokenizer(
    config: TrainingConfig,
    start: Checkpoint | None,
    pieces: Sequence[Piece],
    reading: Reading,
    reporter: Reporter,
) -> Tokenizer:
    """The given model's tokenizer, the one that the settings name, or a new one."""
    if start is not None and start.tokenizer is not None:
        return start.tokenizer
    if config.tokenizer != "bpe":
        return load_tokenizer(config.tokenizer)
    if start is not None:
        raise ConfigError(
            f"{config.init_from} has no tokenizer", "name the one it was trained with: --tokenizer"
        )
    reporter.note("training the tokenizer")
    return train_vocabulary(sample_texts(pieces, replace(reading, bad=[], skipped=[])), config.vocab_size)


def frame_of(tokenizer: Tokenizer, start: Checkpoint | None) -> Frame:
    """The ids around every document: what a given model begins each text with, and the tokenizer's end-of-text or
    else what a given model ends with."""
    generation = start.generation if start is not None else {}
    begin = generation.get("bos_id") if generation.get("add_bos") else None
    end = tokenizer.end_of_text
    if end is None and (ends := generation.get("end_ids")):
        end = int(ends[0])
    return Frame(begin, end)


def text_material(
    folder: Path, fingerprint: str, context: int, config: TrainingConfig, reporter: Reporter
) -> Material:
    """Windows over the token files. Raises DataError where there are too few tokens."""
    data = shards.load(folder, context, config.holdout)
    if data.skipped:
        named = "; ".join(data.skipped[:3]) + ("; ..." if len(data.skipped) > 3 else "")
        reporter.note(f"left out {len(data.skipped)}: {named}")
    how = {
        "by document": "by document",
        "tail of the tokens": "the tail, since documents are too few or uneven",
        "none": "the same, since there is so little",
    }
    reporter.note(
        f"{data.documents} documents: {len(data.train):,} tokens to train on, "
        f"{len(data.val):,} held out ({how[data.split]})"
    )
    about: dict[str, Any] = {
        "documents": data.documents,
        "train_tokens": len(data.train),
        "val_tokens": len(data.val),
        "split": data.split,
        "fingerprint": fingerprint,
    }
    return Material(
        Windows(data.train, context, config.seed), HeldOutWindows(data.val, context), fingerprint, about
    )
