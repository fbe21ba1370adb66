"""From named files to the tokens of a training step."""

from __future__ import annotations

import io
import json
import os
import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm.data import shards
from edgelm.data.batches import Windows, permuted
from edgelm.data.documents import Reading, cut, read_piece
from edgelm.data.files import STDLIB, find_files, save_standard_input
from edgelm.data.formats import format_of
from edgelm.data.shards import TokenData, TokenStream
from edgelm_runtime.errors import DataError
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import byte_tokenizer

END = 256


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def names(paths: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = dict.fromkeys(
        ("b_py", "a_txt", "sub__c_py", "sub__d", "test__e_py", "_git__x", "site-packages__y_py"), "text"
    )
    return write(tmp_path, **files)


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (["."], {}, ["a.txt", "b.py", "sub/c.py", "sub/d", "test/e.py"]),
        (["."], {"include": ["*.py"]}, ["b.py", "sub/c.py", "test/e.py"]),
        (["."], {"exclude": ["test", "*.txt", "sub/d"]}, ["b.py", "sub/c.py"]),
        (["sub", "b.py", "sub/c.py"], {}, ["sub/c.py", "sub/d", "b.py"]),
        (["**/*.py"], {"exclude": ["*"]}, ["b.py", "site-packages/y.py", "sub/c.py", "test/e.py"]),
        (["s*b"], {}, ["sub/c.py", "sub/d"]),
    ],
)
def test_data_names_files_folders_and_globs(
    tree: Path, data: list[str], options: dict[str, list[str]], expected: list[str]
) -> None:
    assert names(find_files([str(tree / name) for name in data], **options), tree) == expected


@pytest.mark.parametrize("data", [[], ["missing"], ["*.none"], ["empty"]])
def test_data_that_is_not_there_is_an_error(tree: Path, data: list[str]) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(DataError, match=data[0].replace("*", r"\*") if data else "no data"):
        find_files([str(tree / name) for name in data])


def test_the_standard_library_has_a_name() -> None:
    found = {path.name for path in find_files([STDLIB], include=["*.py"])}
    assert {"os.py", "json", "decoder.py"} - found == {"json"}


def test_standard_input_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"piped \xff text", b""):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        if content:
            save_standard_input(tmp_path / "new" / "stdin.txt")
            assert (tmp_path / "new" / "stdin.txt").read_bytes() == content
        else:
            with pytest.raises(DataError, match="standard input is empty"):
                save_standard_input(tmp_path / "stdin.txt")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="aé🙂\n ", min_size=1, max_size=200), st.integers(1, 50))
def test_pieces_of_a_file_are_its_text(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int
) -> None:
    path = write(tmp_path_factory.mktemp("pieces"), a_txt=text) / "a.txt"
    passages = [passage for piece in cut([path], piece_bytes=size) for passage in read_piece(piece, Reading())]
    assert "".join(passage.text for passage in passages) == text
    assert [passage.ends_document for passage in passages] == [False] * (len(passages) - 1) + [True]
    assert len({passage.key for passage in passages}) == 1


def test_large_files_are_cut_at_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path, a_txt="0123456789\n" * 100) / "a.txt"
    pieces = list(cut([path], piece_bytes=100))
    assert len(pieces) == 10
    assert all(piece.stop % 11 == 0 for piece in pieces)


def test_json_lines_are_documents(tmp_path: Path) -> None:
    texts = ["one\ntwo", "", "é" * 200, "\ud800 lone"]
    lines = "\n\n".join(json.dumps({"id": 1, "body": text}) for text in texts)
    path = write(tmp_path, a_jsonl=lines) / "a.jsonl"
    passages = [passage for piece in cut([path], piece_bytes=30) for passage in read_piece(piece, Reading("body"))]
    assert [passage.text for passage in passages] == [*texts[:3], "? lone"]
    assert all(passage.ends_document for passage in passages)


@pytest.mark.parametrize("line", ['{"text": 3}', '{"body": "x"}', "[1]", '"text"', "{", "3"])
def test_a_json_line_without_text_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, a_jsonl='{"text": "good"}\n' + line) / "a.jsonl"
    with pytest.raises(DataError, match=r"a\.jsonl, line 2, has no text in 'text'"):
        list(read_piece(next(cut([path])), Reading()))


def encoded(
    folder: Path, files: Path, context: int = 8, holdout: float = 0.1, tokenizer: Tokenizer | None = None
) -> TokenData:
    tokenizer = tokenizer or byte_tokenizer()
    paths = find_files([str(files)])
    frame, digests = shards.Frame(end=tokenizer.end_of_text), shards.content_digests(paths)
    shards.build(
        folder, list(cut(paths)), digests, tokenizer, frame, Reading(), holdout, 2, lambda done, total: None
    )
    assert shards.is_built(folder)
    return shards.load(folder, context, holdout)


def documents_of(stream: TokenStream) -> list[bytes]:
    ids = stream.read(0, len(stream)).tolist()
    text = b"".join(b"\xff" if token == END else bytes([token]) for token in ids)
    assert text.endswith(b"\xff")
    return text.split(b"\xff")[:-1]


def test_every_document_goes_whole_to_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_TASK_BYTES", 2000)
    rng = random.Random(5)
    texts = ["".join(rng.choices("abc é", k=rng.randrange(1, 120))) for _ in range(300)]
    texts += [*texts[:100], "<|endoftext|>"]
    write(tmp_path / "in", **{f"{number:03}_txt": text for number, text in enumerate(texts)})
    data = encoded(tmp_path / "out", tmp_path / "in")
    train, val = documents_of(data.train), documents_of(data.val)
    assert data.split == "by document"
    assert data.documents == len(texts)
    assert Counter(train + val) == Counter(text.encode() for text in texts)
    assert not set(train) & set(val), "the same document is trained on and held out"
    assert 0.03 < len(val) / len(texts) < 0.2
    assert len(list((tmp_path / "out").glob("train-*.bin"))) > 3


@pytest.mark.parametrize(
    ("files", "split", "train", "val"),
    [
        ({"a_txt": "x" * 199}, "tail of the tokens", 180, 20),
        ({"a_txt": "x" * 40}, "tail of the tokens", 32, 9),
        ({"a_txt": "x" * 9}, "none", 10, 10),
    ],
)
def test_few_documents_are_held_out_by_the_tail(
    tmp_path: Path, files: dict[str, str], split: str, train: int, val: int
) -> None:
    data = encoded(tmp_path / "out", write(tmp_path / "in", **files))
    assert (data.split, len(data.train), len(data.val)) == (split, train, val)
    if split != "none":
        assert documents_of(data.val) == [b"x" * (val - 1)]


def test_too_little_data_names_both_numbers(tmp_path: Path) -> None:
    write(tmp_path / "in", a_txt="seven..", b_bin=b"\0" * 50)
    with pytest.raises(DataError, match=r"has 8 tokens \(1 files .* = 9"):
        encoded(tmp_path / "out", tmp_path / "in")


def test_what_is_not_text_is_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path / "in", a_txt="good " * 10, b_png=b"\x89PNG\0\0", c_txt="é".encode("latin-1"), d_txt=b"")
    data = encoded(tmp_path / "out", tmp_path / "in")
    assert [Path(name).name for name in data.skipped] == [
        "b.png: a binary file",
        "c.txt: byte 0xe9 at 0 is not utf-8",
    ]
    assert data.documents == 1


def test_the_fingerprint_is_of_content_and_settings(tmp_path: Path) -> None:
    path = write(tmp_path, a_txt="text") / "a.txt"

    def mark(path: Path, *settings: object) -> str:
        return shards.fingerprint([path], shards.content_digests([path]), *settings)

    first = mark(path, "text")
    os.utime(path, (1, 1))
    copy = tmp_path / "elsewhere" / "b.txt"
    copy.parent.mkdir()
    copy.write_text("text")
    assert mark(path, "text") == mark(copy, "text") == first
    lines = path.rename(tmp_path / "a.jsonl")
    changed = [mark(lines, "text"), mark(copy, "body")]
    copy.write_text("next")
    assert len({first, *changed, mark(copy, "text")}) == 4


def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "in", a_txt="text " * 10) / "a.txt"
    encoded(tmp_path / "out", tmp_path / "in")
    facts = path.stat()
    ((_, digest),) = shards.content_digests([path])
    path.write_text("TEXT " * 10)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert shards.content_digests([path], [tmp_path / "out"])[0][1] == digest
    assert shards.content_digests([path])[0][1] != digest


def test_large_vocabularies_take_wider_tokens(tmp_path: Path) -> None:
    pairs = [bytes([a, b]) for a in range(256) for b in range(256)]
    wide = Tokenizer([bytes([byte]) for byte in range(256)] + pairs, special={"<|endoftext|>": 65792})
    data = encoded(tmp_path / "out", write(tmp_path / "in", a_txt="abcd" * 20), tokenizer=wide)
    assert int(data.val.read(len(data.val) - 1, 1)[0]) == 65792


def stream(*lengths: int) -> TokenStream:
    ends = np.cumsum([0, *lengths])
    return TokenStream(np.arange(a, b, dtype="<u2") for a, b in pairwise(ends))


def test_a_stream_reads_over_the_ends_of_its_parts() -> None:
    whole = stream(3, 1, 7, 2)
    assert len(whole) == 13
    for start in range(13):
        for stop in range(start + 1, 14):
            assert whole.read(start, stop - start).tolist() == list(range(start, stop))
            cutting = whole.slice(start, stop)
            assert cutting.read(0, len(cutting)).tolist() == list(range(start, stop))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65, 1000])
def test_the_order_is_a_permutation(size: int) -> None:
    orders = [[permuted(index, size, key) for index in range(size)] for key in range(3)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    if size >= 64:
        assert orders[0] != orders[1] != list(range(size))
        steps = Counter(b - a for a, b in pairwise(orders[0]))
        assert max(steps.values()) < size / 8, "neighbours in the order stay neighbours in the text"


@pytest.mark.parametrize(("tokens", "context"), [(101, 8), (9, 8), (17, 8), (18, 8), (25, 8), (500, 3)])
def test_an_epoch_sees_every_window_once(tokens: int, context: int) -> None:
    windows = Windows(stream(tokens // 2, tokens - tokens // 2), context, seed=1)
    per_epoch = windows.per_epoch
    for epoch in range(3):
        batch = windows.batch(epoch * per_epoch, per_epoch)
        ids, targets = batch.inputs
        assert ids.shape == targets.shape == (per_epoch, context) and batch.count == ids.numel()
        assert (targets == ids + 1).all() and (ids.diff(dim=1) == 1).all()
        starts = sorted(ids[:, 0].tolist())
        assert starts == list(range(starts[0], starts[0] + per_epoch * context, context))


def test_batches_depend_on_seed_and_number_alone() -> None:
    tokens = stream(1000)
    one, again, other = (Windows(tokens, 8, seed) for seed in (1, 1, 2))
    joined = torch.cat([again.batch(first, 2).targets for first in range(10, 16, 2)])
    assert torch.equal(one.batch(10, 6).targets, joined)
    assert not torch.equal(one.batch(10, 6).targets, other.batch(10, 6).targets)
    first, second = (one.batch(epoch * one.per_epoch, one.per_epoch).targets for epoch in (0, 1))
    assert not torch.equal(first, second)
