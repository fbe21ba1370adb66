"""Files that cannot be used: one line that says what is wrong, and no half-loaded model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import CHAT, FOREIGN, IDS, TINY

from edgelm_runtime import ModelFileError, OptionError, byte_tokenizer, load, verify
from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.interface import TensorInfo
from edgelm_runtime.model_file.metadata import read_model_file
from edgelm_runtime.reports.describe import describe


class FakeSession:
    """A session of which only metadata, inputs and outputs are looked at."""

    def __init__(self, session: Session, **changes: Any) -> None:
        self.metadata: dict[str, str] = session.metadata
        self.inputs = session.inputs
        self.outputs = session.outputs
        for key, value in changes.items():
            if value is None:
                self.metadata.pop(f"edgelm.{key}")
            else:
                self.metadata[f"edgelm.{key}"] = value if isinstance(value, str) else json.dumps(value)


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(TINY, "cpu", 1)


def test_what_a_file_says_about_itself() -> None:
    with load(TINY) as lm:
        assert (lm.info.context_length, lm.info.vocab_size, lm.info.end_ids) == (24, 260, (259,))
        assert lm.tokenizer.decode(lm.tokenizer.encode("the thin")) == "the thin"
        assert lm.info.parity and lm.info.golden and lm.info.graph and lm.info.digest
    with load(CHAT.read_bytes()) as lm:
        assert lm.info.generation["temperature"] == 0.7 and len(lm.info.end_ids) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2, and this edgelm reads format 1; update"),
        ({"format": None}, "without edgelm's metadata"),
        ({"config": None}, "lacks the metadata entry edgelm.config"),
        ({"generation": None}, "lacks"),
        ({"config": "{"}, "damaged entry edgelm.config"),
        ({"config": []}, "damaged entry edgelm.config"),
        ({"config": {}}, "edgelm.config: it has no context_length"),
        (
            {"config": {"vocab_size": 260, "context_length": "many"}},
            "context_length is 'many' and not a whole",
        ),
        (
            {"config": {"vocab_size": 260, "context_length": 0}},
            "context_length is 0 and not a whole number of at least 1",
        ),
        ({"config": {"vocab_size": 261, "context_length": 24}}, "vocabulary is 261, but its graph gives 260"),
        ({"generation": {"end_ids": [260]}}, "end id 260"),
        ({"generation": {"end_ids": [-1]}}, "end_ids is"),
        ({"tokenizer": {"tokens": []}}, "model.onnx has a damaged tokenizer: not a saved"),
        (
            {"tokenizer": byte_tokenizer().to_dict() | {"special": {"x": 300}}},
            "301 ids for a vocabulary of 260",
        ),
    ],
)
def test_metadata_that_cannot_be_true(session: Session, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        read_model_file(FakeSession(session, **changes), "model.onnx")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["input_ids", "logits_at", "logits"])
def test_a_graph_without_what_the_format_promises(session: Session, missing: str) -> None:
    fake = FakeSession(session)
    fake.inputs = {name: info for name, info in session.inputs.items() if name != missing}
    fake.outputs = {name: info for name, info in session.outputs.items() if name != missing}
    with pytest.raises(ModelFileError, match=f"no '{missing}'"):
        read_model_file(fake, "model.onnx")  # type: ignore[arg-type]


def test_files_that_are_none(tmp_path: Path) -> None:
    whole = TINY.read_bytes()
    for name, content in {
        "empty.onnx": b"", "text.onnx": b"hello", "cut.onnx": whole[: len(whole) // 2], "zeros.onnx": bytes(1000)
    }.items():  # fmt: skip
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=name):
            load(path)
    with pytest.raises(ModelFileError, match="there is no model file"):
        load(tmp_path / "nowhere.onnx")
    with pytest.raises(ModelFileError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(ModelFileError, match="given as bytes"):
        load(b"nonsense")


def test_a_model_from_elsewhere_runs_with_tokenizer_and_context() -> None:
    """Its mask, positions and past are fed, batches included, and ids after the tokenizer's never drawn."""
    with load(FOREIGN, tokenizer=byte_tokenizer(), context_length=64) as lm:
        alone = [lm.generate(prompt, max_new_tokens=8) for prompt in ("one", "another")]
        together = lm.generate(["one", "another"], max_new_tokens=8)
        assert [g.token_ids for g in together] == [g.token_ids for g in alone]
        assert all(token_id < 257 for g in alone for token_id in g.token_ids)
        assert lm.score("some text").perplexity > 1
        assert lm.logits([1, 2]).shape == (2, 257)
    with load(FOREIGN, context_length=64) as lm:
        assert lm.generate([65], max_new_tokens=1).token_ids[0] > 256
        with pytest.raises(OptionError, match="no tokenizer"):
            lm.generate("text")


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        (FOREIGN, {}, "without edgelm's metadata"),
        (FOREIGN, {"tokenizer": byte_tokenizer()}, "without edgelm's metadata"),
        (FOREIGN, {"context_length": 0}, "context_length is 0"),
        (TINY, {"context_length": 8}, "brings its own"),
        (TINY, {"tokenizer": byte_tokenizer()}, "brings its own"),
        (IDS, {"tokenizer": byte_tokenizer()}, "257 ids"),
    ],
)
def test_tokenizer_and_context_only_where_the_file_lacks_them(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((OptionError, ModelFileError), match=message):
        load(path, **options)


def test_a_graph_that_is_no_language_model(session: Session) -> None:
    from edgelm_runtime.loading import _foreign

    fake = FakeSession(session)
    fake.inputs = {**session.inputs, "pixels": TensorInfo("pixels", "tensor(float)", (1,))}
    with pytest.raises(ModelFileError, match="wants an input"):
        _foreign(fake, "vision.onnx", None, 8)  # type: ignore[arg-type]
    fake.inputs = {"input_ids": session.inputs["input_ids"]}
    fake.outputs = {"logits": session.outputs["logits"]._replace(shape=("batch", "classes"))}
    with pytest.raises(ModelFileError, match="not a language model"):
        _foreign(fake, "classifier.onnx", None, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF\x03\0\0\0", "is a GGUF file; export it first: edgelm export"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "Git LFS pointer"),
    ],
)
def test_what_is_no_onnx_file_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for use in (load, verify, describe):
        with pytest.raises(ModelFileError, match=words):
            use(path)
