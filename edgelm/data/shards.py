"""Token files: text encoded once, memory-mapped from then on.

A folder of raw little-endian integers, uint16 where the vocabulary fits and uint32 where not, one file
per task and side of the split, and an `index.json` that lists them. Tasks are encoded by threads:
tiktoken works outside the interpreter's lock, so threads scale without a copy of the tokenizer each.
Every document goes to one side, by a hash of its content, between the tokens that the model puts around a text; where
that leaves one side too short, the tail of all tokens is held out instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from edgelm.checkpoint import replaced_folder
from edgelm.data.documents import Piece, Reading, read_piece
from edgelm.data.formats import format_of
from edgelm_runtime.atomic_files import TEMPORARY
from edgelm_runtime.errors import DataError
from edgelm_runtime.text.tokenizer import Tokenizer

INDEX, TOKENIZER = "index.json", "tokenizer.json"
SIDES = ("train", "val")
_TASK_BYTES = 4 << 20
_MOST_TASKS = 512


class TokenStream:
    """Tokens of several memory-mapped arrays, one after the other."""

    def __init__(self, parts: Iterable[NDArray[Any]]) -> None:
        self.parts = tuple(parts)
        self._ends = np.array([0, *accumulate(len(part) for part in self.parts)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """`count` tokens from `start` on, int64."""
        out = np.empty(count, dtype=np.int64)
        filled = 0
        part = int(np.searchsorted(self._ends, start, side="right")) - 1
        while filled < count:
            offset = start + filled - int(self._ends[part])
            piece = self.parts[part][offset : offset + count - filled]
            out[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return out

    def slice(self, start: int, stop: int) -> TokenStream:
        """The tokens from `start` up to `stop`, without a copy."""
        cuts = zip(self.parts, self._ends, strict=False)
        kept = [part[max(start - int(at), 0) : max(stop - int(at), 0)] for part, at in cuts]
        return TokenStream(part for part in kept if len(part))


Split = Literal["by document", "tail of the tokens", "none"]
"""`none`: too little text for two windows, so the model is measured on what it is trained on."""


@dataclass(frozen=True)
class TokenData:
    """The two sides of the split, and what is worth saying about them."""

    train: TokenStream
    val: TokenStream
    documents: int
    skipped: tuple[str, ...]
    """Files, or parts of files, that are not text, and records that are not what they should be."""
    split: Split
    """How the held-out side was chosen."""


@dataclass(frozen=True)
class Frame:
    """The ids that stand before and after every document; None for none."""

    begin: int | None = None
    end: int | None = None


def content_digests(files: Sequence[Path], known: Iterable[Path] = ()) -> list[list[str]]:
    """What was found at each path, and a digest of its content.

    `known` are folders of token files: of what has the same path, size and time as one of their files, the content
    is not read again.
    """
    seen = {found: digest for folder in known for found, digest in _read_index(folder).get("files", [])}
    found = [(path, f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}") for path in files]
    return [[what, seen.get(what) or _content_digest(path)] for path, what in found]


def fingerprint(files: Sequence[Path], digests: Sequence[Sequence[str]], *settings: object) -> str:
    """Changes when anything changes that decides what the token files hold, and not with a file's name or time."""
    contents = [[digest, vars(format_of(path))] for path, (_, digest) in zip(files, digests, strict=True)]
    return hashlib.sha256(json.dumps([contents, *settings]).encode()).hexdigest()[:16]


def _content_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def is_built(folder: Path) -> bool:
    """Whether finished token files lie in `folder`."""
    return bool(_read_index(folder))


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return index if isinstance(index["tasks"], list) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def build(
    folder: Path,
    pieces: Sequence[Piece],
    digests: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    frame: Frame,
    reading: Reading,
    holdout: float,
    threads: int,
    progress: Callable[[int, int], None],
    keep: Path | None = None,
) -> None:
    """Encode `pieces` into `folder`, replacing it whole. `progress` is told bytes done and bytes in all.

    The copy of standard input, `keep`, moves into the folder. Raises DataError, OutputError.
    """
    total = sum(piece.stop - piece.start for piece in pieces)
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    with replaced_folder(folder) as new:
        (new / TOKENIZER).write_text(json.dumps(tokenizer.to_dict()), encoding="utf-8")
        write = partial(_write_task, new, tokenizer, frame, reading, holdout, dtype)
        tasks = list(_grouped(pieces, max(_TASK_BYTES, total // _MOST_TASKS)))
        results, done = [], 0
        with ThreadPoolExecutor(threads) as pool:
            try:
                for task, result in zip(tasks, pool.map(write, range(len(tasks)), tasks), strict=True):
                    results.append(result)
                    done += sum(piece.stop - piece.start for piece in task)
                    progress(done, total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        index = {
            "dtype": dtype.str, "tasks": results, "skipped": [*reading.skipped, *reading.bad],
            "files": digests,
        }  # fmt: skip
        (new / INDEX).write_text(json.dumps(index), encoding="utf-8")
        if keep is not None:
            keep.replace(new / keep.name.removeprefix(TEMPORARY))


def _grouped(pieces: Sequence[Piece], task_bytes: int) -> Iterator[list[Piece]]:
    task: list[Piece] = []
    size = 0
    for piece in pieces:
        task.append(piece)
        size += piece.stop - piece.start
        if size >= task_bytes:
            yield task
            task, size = [], 0
    if task:
        yield task


def _write_task(
    folder: Path,
    tokenizer: Tokenizer,
    frame: Frame,
    reading: Reading,
    holdout: float,
    dtype: np.dtype[Any],
    number: int,
    task: Sequence[Piece],
) -> dict[str, Any]:
    """Encode one task into a file per side. Returns its entry of the index."""
    paths = [folder / f"{side}-{number:05d}.bin" for side in SIDES]
    counts, documents = [0, 0], 0
    with paths[0].open("wb") as train, paths[1].open("wb") as val:
        files: tuple[BinaryIO, BinaryIO] = (train, val)
        for piece in task:
            for passage in read_piece(piece, reading):
                side = int(passage.key < holdout * 2**64)
                ids = tokenizer.encode(passage.text)
                if passage.begins_document and frame.begin is not None:
                    ids.insert(0, frame.begin)
                if passage.ends_document and frame.end is not None:
                    ids.append(frame.end)
                files[side].write(np.array(ids, dtype=dtype).tobytes())
                counts[side] += len(ids)
                documents += passage.ends_document
    return {"tokens": counts, "documents": documents}


def load(folder: Path, context: int, holdout: float) -> TokenData:
    """Map what `build` wrote. Each side has at least one window of `context` + 1 tokens.

    Raises DataError where there are too few tokens for that, with both numbers.
    """
    index = _read_index(folder)
    dtype = np.dtype(index["dtype"])
    sides: list[TokenStream] = []
    for side, name in enumerate(SIDES):
        counts = [task["tokens"][side] for task in index["tasks"]]
        parts = (
            np.memmap(folder / f"{name}-{number:05d}.bin", dtype, "r", shape=(count,))
            for number, count in enumerate(counts)
            if count
        )
        sides.append(TokenStream(parts))
    train, val = sides
    skipped = tuple(index["skipped"])
    documents = sum(task["documents"] for task in index["tasks"])
    train, val, split = _split(train, val, context + 1, holdout, skipped)
    return TokenData(train, val, documents, skipped, split)


def _split(
    train: TokenStream, val: TokenStream, window: int, holdout: float, skipped: Sequence[str]
) -> tuple[TokenStream, TokenStream, Split]:
    """The split by document where it is a fair one. Few or uneven documents can put almost everything,
    or nothing, on the held-out side; then the tail of all tokens is held out."""
    total = len(train) + len(val)
    if total < window:
        unread = f" ({len(skipped)} left out: {skipped[0]})" if skipped else ""
        raise DataError(
            f"the data has {total} tokens{unread}, and one training example takes context_length + 1 = {window}",
            "give more text or a smaller --context-length",
        )
    if window <= len(val) <= max(2 * holdout, 0.25) * total and len(train) >= window:
        return train, val, "by document"
    everything = TokenStream(train.parts + val.parts)
    if total < 2 * window:
        return everything, everything, "none"
    held_out = min(max(window, round(holdout * total)), total - window)
    return (
        everything.slice(0, total - held_out),
        everything.slice(total - held_out, total),
        "tail of the tokens",
    )
