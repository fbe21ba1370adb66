"""From named files to the tokens of a training step."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
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
from edgelm.data.documents import Reading, cut, read_piece, taken_as_text
from edgelm.data.files import STDLIB, find_files, refuse_overlap, save_standard_input, weighted
from edgelm.data.shards import TokenData, TokenStream
from edgelm_runtime.errors import DataError, OutputError
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


def test_files_count_as_often_as_their_weight_says(tree: Path) -> None:
    files = find_files([str(tree)])
    found = names(weighted(files, ["*.py=2", "c.py=3"]), tree)
    assert found == [
        "a.txt",
        "b.py",
        "b.py",
        "sub/c.py",
        "sub/c.py",
        "sub/c.py",
        "sub/d",
        "test/e.py",
        "test/e.py",
    ]
    with pytest.raises(DataError, match=r"matches 'x\*'"):
        weighted(files, ["x*=2"])


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
    passages = [
        passage for piece in cut([path], piece_bytes=size) for passage in read_piece(piece, Reading())
    ]
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
    passages = [
        passage for piece in cut([path], piece_bytes=30) for passage in read_piece(piece, Reading("body"))
    ]
    assert [passage.text for passage in passages] == [*texts[:3], "? lone"]
    assert all(passage.ends_document for passage in passages)


BAD_LINES = {
    '{"text": 3}': "line 3, has no text in 'text' but 3",
    '{"text": null}': "line 3, has no text in 'text' but null",
    '{"body": "x"}': "line 3, has no text in 'text', only body",
    "null": "line 3, is null and has no text in 'text'",
    "[1]": r"line 3, is \[1\] and has no text",
    '"text"': 'line 3, is "text" and has no text',
    '{"text": "cut of': "line 3, is no JSON: Unterminated string",
    "[" * 100_000: "line 3, is nested too deeply",
    "1" * 5000: "line 3, is no JSON: Exceeds the limit",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
@pytest.mark.parametrize("piece_bytes", [20, 1 << 20])
def test_a_bad_json_line_is_named_or_left_out(tmp_path: Path, line: str, piece_bytes: int) -> None:
    path = write(tmp_path, a_jsonl='{"text": "good"}\n\n' + line + '\n{"text": "too"}') / "a.jsonl"

    def texts(reading: Reading) -> list[str]:
        pieces = cut([path], reading, piece_bytes)
        return [passage.text for piece in pieces for passage in read_piece(piece, reading)]

    with pytest.raises(DataError, match=BAD_LINES[line]):
        texts(Reading())
    lenient = Reading(most_bad=1)
    assert texts(lenient) == ["good", "too"]
    assert re.search(BAD_LINES[line], lenient.bad[0])


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.jsonlines", "a.jsonl.gz", "a.ndjson.zst"]
)
@pytest.mark.parametrize("lines", ['{"text": "é"}\n{"text": "b"}', '[\n{"text": "é"},\r\n{"text": "b"}\n]\n'])
def test_json_lines_have_many_names_and_forms(tmp_path: Path, name: str, lines: str) -> None:
    path = tmp_path / name
    for content in (lines.encode(), b"\xef\xbb\xbf" + lines.encode()):
        path.write_bytes(compressed(content, path.suffix))
        passages = [passage for piece in cut([path]) for passage in read_piece(piece, Reading())]
        assert [passage.text for passage in passages] == ["é", "b"]


def compressed(content: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(content)
    if suffix == ".zst":
        return bytes(pytest.importorskip("zstandard").compress(content))
    return content


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_is_read_in_any_encoding_and_compression(tmp_path: Path, encoding: str, suffix: str) -> None:
    text = "one é\r\ntwo\n" * 3
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(compressed(text.encode(encoding), suffix))
    reading = Reading(encoding="utf-8" if encoding == "utf-8-sig" else encoding)
    passages = [passage for piece in cut([path], reading) for passage in read_piece(piece, reading)]
    assert "".join(passage.text for passage in passages) == text.replace("\r\n", "\n")
    assert [passage.ends_document for passage in passages] == [True]
    assert not reading.skipped


def test_a_long_compressed_text_is_one_document_in_parts(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(200_000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode(), 1))
    passages = [p for piece in cut([tmp_path / "a.txt.gz"]) for p in read_piece(piece, Reading())]
    assert "".join(passage.text for passage in passages) == text
    assert [p.begins_document for p in passages] == [True] + [False] * (len(passages) - 1)
    assert [p.ends_document for p in passages] == [False] * (len(passages) - 1) + [True]
    assert all(passage.text.endswith("\n") for passage in passages) and len(passages) > 2


def test_half_a_compressed_file_is_an_error(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "a.txt.gz", "a.txt.zst"):
        path = tmp_path / name
        whole = compressed(os.urandom(5000).hex().encode(), path.suffix)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match=r"cut off|is no JSON"):
            list(read_piece(next(cut([path])), Reading()))


def test_a_parquet_file_has_a_document_per_row(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["one", None, "two"]}), tmp_path / "a.parquet")
    reading = Reading(most_bad=1)
    passages = list(read_piece(next(cut([tmp_path / "a.parquet"])), reading))
    assert [passage.text for passage in passages] == ["one", "two"]
    assert "row 2" in reading.bad[0]


def test_one_bad_byte_is_placed_or_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, a_txt=b"good\n" * 20 + b"b\xe9d\n") / "a.txt"
    strict, lenient = Reading(), Reading(replace=True)
    for piece_bytes in (50, 1 << 20):
        pieces = list(cut([path], strict, piece_bytes))
        kept = "".join(p.text for piece in pieces for p in read_piece(piece, strict))
        assert kept == ("" if len(pieces) == 1 else "good\n" * 11)
        assert "byte 0xe9 at 101 is not utf-8" in strict.skipped.pop()
        assert "b\ufffdd" in "".join(p.text for piece in pieces for p in read_piece(piece, lenient))
    with pytest.raises(DataError, match="no encoding 'klingon'"):
        Reading(encoding="klingon")


def test_json_lines_under_another_name_are_noticed(tmp_path: Path) -> None:
    lines = '{"text": "a"}\n' * 5
    folder = write(tmp_path, a_txt=lines, b_txt="plain\n" * 5, c_jsonl=lines, d_txt='{"one": "object"}\n')
    assert taken_as_text(sorted(folder.iterdir())) == [folder / "a.txt"]


def test_documents_begin_and_end_with_the_models_tokens(tmp_path: Path) -> None:
    write(tmp_path / "in", a_jsonl="".join(json.dumps({"text": f"t{n}" * 9}) + "\n" for n in range(40)))
    paths, tokenizer = find_files([str(tmp_path / "in")]), byte_tokenizer()
    shards.build(
        tmp_path / "out", list(cut(paths)), shards.content_digests(paths), tokenizer, shards.Frame(7, 256),
        Reading(), 0.1, 1, lambda done, total: None,
    )  # fmt: skip
    train = shards.load(tmp_path / "out", 8, 0.1).train
    ids = train.read(0, len(train))
    assert ids[0] == 7 and (ids[1:][ids[:-1] == 256] == 7).all()
    assert (ids == 7).sum() == (ids == 256).sum() > 10


def test_an_output_in_the_data_or_data_in_the_output_is_refused(tmp_path: Path) -> None:
    write(tmp_path, texts__a_txt="a", run__b_txt="b")
    texts = str(tmp_path / "texts")
    for data, out in ((texts, "texts/run"), (texts, "texts"), (f"{texts}/a.txt", "texts"), (texts, ".")):
        with pytest.raises(OutputError, match=re.escape(str(tmp_path / "texts"))):
            refuse_overlap([data], tmp_path / out)
    refuse_overlap([texts], tmp_path / "run")
    refuse_overlap([f"{texts}/a.txt"], tmp_path / "texts" / "run")
    refuse_overlap([str(tmp_path)], tmp_path / "run" / "one", exclude=["run"])


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
    with pytest.raises(DataError, match=r"has 8 tokens \(1 left out: .* = 9"):
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
