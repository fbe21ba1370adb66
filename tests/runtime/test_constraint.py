"""Constrained output: every text is valid, whatever the model would like to say."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from fakes import IDS, TINY, RandomDecoder
from hypothesis import given, settings
from hypothesis import strategies as st

from edgelm_runtime import LanguageModel, MissingExtraError, OptionError, Tokenizer, load
from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.metadata import ModelFile

pytest.importorskip("llguidance", reason="needs the extra constrain")

MERGED = [b'"name"', b'": ', b"ab", b"true", b"\xc3\xa9\xc3", b'"}', b"\xe2\x82"]
TOKENIZER = Tokenizer(
    [*(bytes([byte]) for byte in range(256)), *MERGED], special={"<end>": 263, "<pad>": 265}
)
VOCAB = 266
# As in SentencePiece's vocabularies: a space goes in front of a text, and tokens begin with one.
SPACED = [
    Tokenizer(
        [*(bytes([byte]) for byte in range(256)), b" {", b" true", b" yes", b" 2", b" ab", b" [", b'"name"'],
        special={"<end>": 263, "<pad>": 265}, space_symbol="\u2581", prefix_space=prefix,  # type: ignore[arg-type]
    )
    for prefix in ("first", "always")
]  # fmt: skip

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["a", "b\u20ac", "<end>"]},
        "size": {"type": "integer", "minimum": -5, "maximum": 50},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "size", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(TINY, "cpu", 1)


def model(
    session: Session, seed: int, end_ids: tuple[int, ...], tokenizer: Tokenizer = TOKENIZER
) -> LanguageModel:
    """A model of nonsense over a tokenizer."""
    config = {"vocab_size": VOCAB, "context_length": 64}
    info = ModelFile(config, tokenizer, {"end_ids": list(end_ids)})
    return LanguageModel(session, info, RandomDecoder(VOCAB, 64, seed, noise=2.0))


cases = st.tuples(
    st.integers(0, 1000),
    st.sampled_from([(), (263,), (263, 265)]),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.sampled_from([0, "auto"]),
    st.sampled_from([TOKENIZER, *SPACED]),
)


def check(
    session: Session, case: tuple[Any, ...], valid: Any, bounded: bool = True, **constraint: Any
) -> None:
    seed, end_ids, temperature, lookup, tokenizer = case
    lm = model(session, seed, end_ids, tokenizer)
    options = {"temperature": temperature, "seed": seed, "max_new_tokens": 400, "lookup": lookup}
    found = lm.generate("Say: ", **options, **constraint)
    if found.finish_reason != "length" or bounded:
        assert found.finish_reason in ("stop", "end")
        assert valid(found.text), found.text
    assert not {*end_ids, 264, 265} & set(found.token_ids)
    plain = lm.generate("Say: ", **{**options, "lookup": 0}, **constraint)
    assert plain.token_ids == found.token_ids


@pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
@settings(max_examples=25, deadline=None)
@given(cases)
def test_json_follows_its_schema(session: Session, case: tuple[Any, ...]) -> None:
    def valid(text: str) -> bool:
        value = json.loads(text)
        # No white space but json.dumps's own; escapes and -0 may be written otherwise.
        assert text == json.dumps(value, ensure_ascii=False) or "\\" in text or "-0" in text
        return (
            list(value) == ["name", "kind", "size", "tags"]
            and len(value["name"]) <= 6
            and value["kind"] in SCHEMA["properties"]["kind"]["enum"]  # type: ignore[index]
            and type(value["size"]) is int
            and -5 <= value["size"] <= 50
            and len(value["tags"]) <= 3
            and all(type(tag) is bool for tag in value["tags"])
        )

    check(session, case, valid, json_schema=SCHEMA)


@pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
@settings(max_examples=40, deadline=None)
@given(
    cases,
    st.sampled_from(
        [r"[ab]{3,9}c?", r"(yes|no), [0-9]{2,4}\.", r"\u20ac{1,9}[^a-z]{2}x", r"(ab)*c", r"a?b?"]
    ),
)
def test_text_matches_its_expression(session: Session, case: tuple[Any, ...], regex: str) -> None:
    check(session, case, lambda text: re.fullmatch(regex, text), bounded="*" not in regex, regex=regex)


@settings(max_examples=40, deadline=None)
@given(cases, st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5))
def test_text_is_one_of_the_choices(session: Session, case: tuple[Any, ...], choices: list[str]) -> None:
    choices = [choice.encode(errors="replace").decode() for choice in choices]
    check(session, case, lambda text: text in choices, choices=choices)


def test_each_sample_and_each_prompt_has_a_state_of_its_own(session: Session) -> None:
    lm = model(session, 3, (263,))
    found = lm.generate(["a", "bb"], n=4, choices=["one", "two", "three"], temperature=3.0, seed=2)
    assert all(generation.text in ("one", "two", "three") for generation in found)
    assert len({generation.text for generation in found}) > 1


def test_forced_tokens_count_and_may_not_contradict(session: Session) -> None:
    lm = model(session, 3, (263,))
    assert lm.generate("x", choices=["no", "yes"], forced_tokens=[ord("y")]).text == "yes"
    with pytest.raises(OptionError, match="forced_tokens contradict"):
        lm.generate("x", choices=["no", "yes"], forced_tokens=[ord("z"), ord("z")])


def test_a_stream_gives_the_same_and_checks_at_the_call(session: Session) -> None:
    lm = model(session, 3, (263,))
    options: dict[str, Any] = {"regex": "[a-f]{20}", "temperature": 1.0, "seed": 4}
    assert "".join(piece.text for piece in lm.stream("x", **options)) == lm.generate("x", **options).text
    with pytest.raises(OptionError, match="constraint is not usable"):
        lm.stream("x", regex="(")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"regex": "("}, "not usable"), ({"regex": ""}, "regex"), ({"regex": 5}, "regex"),
        ({"regex": r"(?=a)b"}, "not usable"), ({"choices": []}, "choices"), ({"choices": "yes"}, "choices"),
        ({"choices": ["a", ""]}, "choices"), ({"choices": [1]}, "choices"), ({"json_schema": "{"}, "not JSON"),
        ({"json_schema": {"type": "nonsense"}}, "not usable"), ({"json_schema": "[]"}, "json_schema"),
        ({"json_schema": False}, "nothing is valid"), ({"json_schema": {"type": {1}}}, "not JSON"),
        ({"json_schema": {"$ref": "#/no"}}, "not usable"), ({"json_schema": {"minimum": float("inf")}}, "not usable"),
        ({"json_schema": "[" * 99999}, "not JSON"), ({"regex": "(" * 5000}, "not usable"),
        ({"regex": "(a{1,1000}){1,1000}"}, "not usable"), ({"regex": "\ud800"}, "not usable"),
        ({"regex": "a", "choices": ["b"]}, "exclude"),
    ],
)  # fmt: skip
def test_an_unusable_constraint_is_named(session: Session, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        model(session, 0, ()).generate("x", **wrong)


def test_a_model_without_tokenizer_cannot_be_constrained() -> None:
    with load(IDS) as lm, pytest.raises(OptionError, match="tokenizer"):
        lm.generate([1], regex="a")


def test_a_real_model_writes_valid_json() -> None:
    with load(TINY) as lm:
        with pytest.warns(UserWarning, match="context"):
            found = lm.generate("{", json_schema=SCHEMA, temperature=1.0, seed=1, max_new_tokens=200)
        assert found.finish_reason == "stop"
        assert set(json.loads(found.text)) == set(SCHEMA["required"])


def test_without_llguidance_the_extra_is_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match=r"edgelm\[constrain\]"):
        model(session, 0, ()).generate("x", regex="a")


def test_masks_are_read_bit_for_bit(session: Session) -> None:
    """The mask of the first token against the tokens that begin a choice."""
    from edgelm_runtime.generation.constraint import make_constraint
    from edgelm_runtime.generation.options import TextOptions

    info = ModelFile({"vocab_size": VOCAB, "context_length": 9}, TOKENIZER, {"end_ids": [263]})
    constraint = make_constraint(info, TextOptions(choices=["abc", "true"]))
    assert constraint is not None
    mask = constraint.start(0).allowed(np.zeros(0, np.int64))
    assert np.flatnonzero(mask).tolist() == [ord("a"), ord("t"), 258, 259]


def test_a_schema_may_be_true(session: Session) -> None:
    """Any JSON value, as JSON Schema has it."""
    for schema in (True, "true", {}):
        lm = model(session, 2, (263,))
        found = lm.generate("x", json_schema=schema, temperature=1.0, seed=4, max_new_tokens=60)
        assert found.finish_reason == "length" or json.loads(found.text) is not NotImplemented
    with pytest.raises(OptionError, match="nothing is valid"):
        model(session, 2, ()).generate("x", json_schema="false")


def test_a_reference_for_lookup_is_text_in_the_middle() -> None:
    for tokenizer in SPACED:
        assert tokenizer.encode("yes yes", continues=True) == [*b"yes", 258]
        assert tokenizer.encode("yes yes") == [258, 258]
