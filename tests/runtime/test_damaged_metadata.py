"""A file whose metadata is damaged or contradicts itself is refused with one line, or works; nothing in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import with_entries
from fakes import CHAT, DATA, TINY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgelm.cli.info_command import command as info
from edgelm_runtime import EdgelmError, ModelFileError, load, verify
from edgelm_runtime.engine.session import Session
from edgelm_runtime.reports.describe import describe

MODELS = [TINY, CHAT, DATA / "cached.onnx"]


def entries_of(path: Path) -> dict[str, Any]:
    session = Session(path, "cpu", 1)
    found = {key.removeprefix("edgelm."): value for key, value in session.metadata.items()}
    session.close()
    return found


ENTRIES = {path: entries_of(path) for path in MODELS}

ANYTHING = st.recursive(
    st.sampled_from(
        [None, True, False, 0, -1, 3, 10**6, 2**31, 2**63, 10**400, 0.5, 1e308, "", "x", "a\0b", "é"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "ids", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, lists by a few of their elements."""
    inside = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        inside = list(enumerate(value))[:3]
    return [path, *(place for key, part in inside for place in places(part, (*path, key)))]


def put(value: Any, place: tuple[Any, ...], new: Any, drop: bool) -> Any:
    if not place:
        return new
    target = value
    for key in place[:-1]:
        target = target[key]
    if drop:
        del target[place[-1]]
    else:
        target[place[-1]] = new
    return value


def use_everywhere(data: bytes, path: Path) -> None:
    """Every way to use the file ends, or in an EdgelmError of one line."""
    path.write_bytes(data)

    def use_all() -> None:
        with load(path, "cpu", 1) as lm:
            lm.generate("the thing", max_new_tokens=2)
            lm.chat([{"role": "user", "content": "Hi"}], max_new_tokens=2)
            lm.score("in the")
            lm.embed("thin")

    def show() -> None:
        json.dumps(describe(path))
        info.callback(path, as_json=False)  # type: ignore[misc]

    for use in (use_all, lambda: verify(path, "cpu", 1), show):
        try:
            use()
        except EdgelmError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place(data: st.DataObject, tmp_path: Path) -> None:
    path = data.draw(st.sampled_from(MODELS))
    entry = data.draw(st.sampled_from([name for name in ENTRIES[path] if name != "digest"]))
    value = json.loads(ENTRIES[path][entry])
    place = data.draw(st.sampled_from(places(value)))
    changed = put(value, place, data.draw(ANYTHING), drop=bool(place) and data.draw(st.booleans()))
    use_everywhere(with_entries(path, {entry: json.dumps(changed)}), tmp_path / "m.onnx")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_any_place(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(data.draw(st.sampled_from(MODELS)).read_bytes())
    # Metadata lies at the end, the graph's structure at the beginning.
    first = data.draw(st.sampled_from([0, len(content) // 2, max(0, len(content) - 12_000)]))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(first, len(content) - 1))] = data.draw(st.integers(0, 255))
    use_everywhere(bytes(content), tmp_path / "m.onnx")


NAMED: list[tuple[dict[str, str | bytes | None], str]] = [
    ({"config": "[" * 100_000}, "edgelm.config: it is nested too deeply"),
    ({"config": '{"vocab_size": 1e999}'}, "edgelm.config: 1e999 is too large"),
    ({"quality": '{"perplexity": NaN}'}, "edgelm.quality: NaN is no number"),
    ({"origin": "-Infinity"}, "edgelm.origin: -Infinity is no number"),
    ({"origin": b'{"path": "\xff"}'}, "damaged metadata: .*utf-8"),
    ({"generation": '{"end_ids": 3}'}, "end_ids is 3 and not a list of token ids"),
    ({"generation": '{"end_ids": [], "bos_id": 260, "add_bos": true}'}, "begin id 260, outside"),
    ({"generation": '{"add_bos": true}'}, "begins every text with a token and does not say which"),
    ({"generation": '{"temperature": "hot"}'}, "sets an unusable default: temperature is 'hot'"),
    ({"generation": '{"temperature": -1}'}, "sets an unusable default: temperature is -1"),
    ({"generation": '{"banned_tokens": [9999]}'}, "sets an unusable default: .*9999"),
    ({"generation": '{"chat_template": ["x"]}'}, "chat_template is .* and not a text or null"),
    ({"golden": '{"prompts": []}'}, "edgelm.golden: it has no atol"),
    ({"golden": '{"atol": 1, "prompts": [{"ids": []}]}'}, "prompts is .* and not a list of prompts"),
    ({"graph": '{"operators": {"Add": "many"}}'}, "operators is"),
    ({"graph": '{"cache_spare": -1}'}, "cache_spare is -1"),
    ({"parity": "[]"}, "it is \\[\\] and not an object"),
    ({"digest": '{"graph": 1}'}, "edgelm.digest: it is not an object of texts"),
    ({"format": "true"}, "has format True"),
    ({"tokenizer": "3"}, "damaged tokenizer"),
]


@pytest.mark.parametrize(("entries", "message"), NAMED)
def test_what_is_wrong_is_named(
    entries: dict[str, str | bytes | None], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(with_entries(TINY, entries))
    with pytest.raises(ModelFileError, match=message) as caught:
        load(path, "cpu", 1)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", ""), "onnxruntime has nothing to add"


def test_special_tokens_that_begin_alike_in_any_number(tmp_path: Path) -> None:
    """Each the beginning of the next, so that a tree over them is as deep as they are many."""
    tokenizer = json.loads(ENTRIES[TINY]["tokenizer"])
    tokenizer["special"] = {"<" * (count + 1): 259 for count in range(900)}
    path = tmp_path / "m.onnx"
    path.write_bytes(with_entries(TINY, {"tokenizer": json.dumps(tokenizer)}))
    with load(path, "cpu", 1) as lm:
        assert lm.tokenizer.encode("<" * 1001 + "in", "all") == [259, 259, *lm.tokenizer.encode("in")]
        lm.generate("<" * 600, max_new_tokens=2, allowed_special="all")


def test_parts_that_are_missing_are_no_damage(tmp_path: Path) -> None:
    """Other programs may write files with nothing but what the runtime needs."""
    path = tmp_path / "m.onnx"
    left_out = dict.fromkeys(("origin", "parity", "golden", "graph", "quality", "tokenizer"))
    path.write_bytes(with_entries(TINY, {**left_out, "config": '{"context_length": 24, "vocab_size": 260}'}))
    with load(path, "cpu", 1) as lm:
        assert len(lm.generate([1, 2], max_new_tokens=3).token_ids) == 3
    about = describe(path)
    assert about["graph"] == {} and about["tokenizer"] is None
    with pytest.raises(EdgelmError, match="carries no digest"):
        verify(path, "cpu", 1)


def test_a_tokenizer_that_was_changed_is_found_when_the_file_is_loaded(tmp_path: Path) -> None:
    tokens = json.loads(ENTRIES[TINY]["tokenizer"])
    tokens["tokens"][97], tokens["tokens"][98] = tokens["tokens"][98], tokens["tokens"][97]
    path = tmp_path / "m.onnx"
    kept = {"tokenizer": json.dumps(tokens), "digest": ENTRIES[TINY]["digest"]}
    path.write_bytes(with_entries(TINY, kept))
    with pytest.raises(ModelFileError, match=r"m\.onnx was changed after its export: its tokenizer"):
        load(path, "cpu", 1)
    path.write_bytes(with_entries(TINY, {"digest": ENTRIES[TINY]["digest"], "quality": None}))
    with load(path, "cpu", 1) as lm:
        assert np.isfinite(lm.logits([1])).all()
