"""A real, tiny model file through the whole Python interface."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import BROKEN, CACHED, CHAT, IDS, TINY, ScriptedDecoder, pieces_text

import edgelm_runtime
from edgelm_runtime import (
    ClosedError,
    ContextWarning,
    LanguageModel,
    ModelFileError,
    NumericsError,
    OptionError,
    Tokenizer,
    load,
)

pytestmark = pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")


@pytest.fixture(scope="module", params=["tiny", "cached", "cached, recomputed"])
def lm(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    """The same weights without a cache, with one, and with one that is not used."""
    path, decode = {"tiny": (TINY, "auto"), "cached": (CACHED, "cached")}.get(
        request.param, (CACHED, "recompute")
    )
    with load(path, threads=1, decode=decode) as model:
        yield model


def test_a_cache_changes_no_token(lm: LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0.9, "seed": 2}
    with load(TINY, threads=1) as plain:
        assert lm.generate("the in", **options).token_ids == plain.generate("the in", **options).token_ids


@pytest.fixture(scope="module")
def chat() -> Iterator[LanguageModel]:
    with load(CHAT, threads=1) as model:
        yield model


@pytest.mark.parametrize("lookup", [0, "auto", 3])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 4, "top_p": 0.9}])
def test_one_text_however_it_is_made(lm: LanguageModel, sampling: dict[str, Any], lookup: Any) -> None:
    """Alone, in a batch, as stream, from ids, over the end of the context: the same tokens."""
    options = {**sampling, "max_new_tokens": 40}
    expected = lm.generate("in the ", lookup=0, **options)
    ids = lm.tokenizer.encode("in the ")
    batch = lm.generate(["x", "in the ", "something longer in the "], lookup=lookup, **options)
    assert [g.token_ids for g in batch][1] == expected.token_ids
    assert lm.generate(ids, lookup=lookup, **options).text == expected.text
    assert lm.generate(np.array(ids), lookup=lookup, **options).text == expected.text
    pieces = list(lm.stream("in the ", lookup=lookup, **options))
    assert pieces_text(pieces) == expected.text
    assert [p.token_id for p in pieces if p.token_id is not None] == expected.token_ids


def test_the_result_has_the_shape_that_was_asked_for(lm: LanguageModel) -> None:
    assert isinstance(lm.generate("a", max_new_tokens=1), edgelm_runtime.Generation)
    assert len(lm.generate(["a"], max_new_tokens=1)) == 1
    assert len(lm.generate("a", n=3, max_new_tokens=1)) == 3
    assert len(lm.generate([[1, 2], "b"], n=2, max_new_tokens=1)) == 4
    scored = lm.generate("a", max_new_tokens=4, logprobs=2)
    assert len(scored.logprobs) == len(scored.top_logprobs) == 4
    assert scored.logprobs[0] == scored.top_logprobs[0][0][1]  # greedy takes the likeliest
    assert lm.generate("a", max_new_tokens=2).logprobs is None


def test_the_model_files_defaults_hold_until_an_option_is_given(chat: LanguageModel) -> None:
    ids = [1, 2, 3]
    assert len(chat.generate(ids, seed=1).token_ids) == 5
    hot = chat.generate(ids, seed=1).token_ids
    assert hot == chat.generate(ids, seed=1, temperature=0.7, max_new_tokens=5).token_ids
    assert len(chat.generate(ids, temperature=0, max_new_tokens=3).token_ids) == 3


def test_prompts_get_a_begin_token_where_the_model_wants_one(chat: LanguageModel, lm: LanguageModel) -> None:
    begin = chat.info.generation["bos_id"]
    assert chat.encode_prompt("a").tolist() == [begin, ord("a")]
    assert chat.encode_prompt("").tolist() == [begin]
    assert lm.encode_prompt("").tolist() == [lm.tokenizer.end_of_text]
    text = "<|endoftext|>a"
    assert lm.encode_prompt(text).tolist()[0] == ord("<")
    assert lm.encode_prompt(text, "all").tolist() == [259, ord("a")]
    assert lm.encode_prompt(text, ["<|endoftext|>"]).tolist() == [259, ord("a")]


def test_chat_uses_the_files_template(chat: LanguageModel) -> None:
    pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": "Hi<|im_end|>"}]
    ids = chat.chat_prompt(messages)
    start, end = (chat.tokenizer.special[f"<|{name}|>"] for name in ("im_start", "im_end"))
    # A template says itself where the begin token goes; this one wants none.
    assert [i for i in ids if i >= 259] == [start, end, start]
    answer = chat.chat(messages, seed=3)
    assert answer.token_ids == chat.generate(ids, seed=3).token_ids
    assert pieces_text(list(chat.stream_chat(messages, seed=3))) == answer.text


def test_chat_without_template_ends_before_the_users_next_turn(lm: LanguageModel) -> None:
    turn = lm.tokenizer.encode("fine\nUser: and")
    messages = [{"role": "user", "content": "How?"}]
    answer = lm.chat(messages, forced_tokens=turn)
    assert (answer.text, answer.finish_reason) == ("fine", "stop")
    assert lm.chat(messages, forced_tokens=turn, stop=["and"]).text == "fine\nUser: "


def test_logits_are_those_that_generate_uses(lm: LanguageModel) -> None:
    text = [1, 2, 3, 4, 5]
    logits = lm.logits(text)
    assert logits.shape == (5, 260) and logits.dtype == np.float32
    assert int(logits[-1].argmax()) == lm.generate(text, max_new_tokens=1).token_ids[0]
    assert lm.logits(text[:3])[2] == pytest.approx(logits[2], abs=1e-5)  # causal


def test_score_adds_up(lm: LanguageModel, chat: LanguageModel) -> None:
    text = "the thing in the thin string, and " * 3
    score = lm.score(text)
    logits = lm.logits(score.token_ids[:12]).astype(float)
    exact = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    by_hand = [exact[i, score.token_ids[i + 1]] for i in range(11)]
    assert score.logprobs[:11] == pytest.approx(by_hand, abs=1e-5)
    assert score.perplexity == pytest.approx(math.exp(-score.logprobs.mean()))
    size = len(text.encode()) - len(lm.tokenizer.decode_bytes(score.token_ids[:1]))
    assert score.bits_per_byte == pytest.approx(-score.logprobs.sum() / math.log(2) / size)
    # A begin token makes the first token of the text count too.
    assert chat.score("ab").byte_count == 2 and lm.score("ab").byte_count == 1


def test_embeddings(lm: LanguageModel) -> None:
    texts = ["the first", "x", "a longer one than the others, by far"]
    vectors = lm.embed(texts)
    assert vectors.shape == (3, 16) and vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    for layer in ("hidden", "embeddings"):
        for pooling in ("mean", "last", "none"):
            options: dict[str, Any] = {"layer": layer, "pooling": pooling, "normalize": False}
            batch = lm.embed(texts, batch_size=2, **options)
            for text, vector in zip(texts, batch, strict=True):
                assert vector == pytest.approx(lm.embed(text, **options), abs=1e-5)
    states = lm.embed(texts[0], pooling="none", normalize=False)
    assert states.mean(0) == pytest.approx(lm.embed(texts[0], normalize=False), abs=1e-6)
    assert len(lm.embed(texts[2], pooling="none")) == 24  # cut to the context
    # Token plus position: the same token differs from place to place by the position alone.
    here, there = (
        lm.embed(ids, layer="embeddings", pooling="none", normalize=False) for ids in ([7, 7], [8, 8])
    )
    assert here[1] - here[0] == pytest.approx(there[1] - there[0], abs=1e-6)


def test_one_model_in_many_threads(lm: LanguageModel) -> None:
    prompts = [f"thread {i} " for i in range(8)]
    options: dict[str, Any] = {"max_new_tokens": 25, "temperature": 0.8, "seed": 1}
    expected = [lm.generate(prompt, **options).text for prompt in prompts]
    found: list[list[str]] = [[] for _ in prompts]

    def work(index: int) -> None:
        for _ in range(4):
            found[index].append(lm.generate(prompts[index], **options).text)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[text] * 4 for text in expected]


def test_a_closed_model_says_so() -> None:
    with load(TINY) as lm:
        stream = lm.stream("a")
        next(stream)
    with pytest.raises(ClosedError):
        next(stream)
    uses: list[Any] = [
        lambda: lm.generate("a"), lambda: lm.stream("a"), lambda: lm.chat([{"role": "user", "content": "a"}]),
        lambda: lm.score("ab"), lambda: lm.embed("a"), lambda: lm.logits([1]), lambda: lm.provider,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_logits_that_are_not_numbers_are_named() -> None:
    with load(BROKEN) as lm:
        assert lm.generate([1], max_new_tokens=2, temperature=0).token_ids
        for use in (lambda: lm.generate([1], max_new_tokens=9), lambda: lm.score([1, 2, 3, 4, 5, 6])):
            with pytest.raises(NumericsError, match="not finite"):
                use()


def test_a_model_of_ids_alone() -> None:
    with load(IDS) as lm:
        made = lm.generate([1, 2], max_new_tokens=5)
        assert made.text == "" and len(made.token_ids) == 5
        assert math.isnan(lm.score([1, 2, 3]).bits_per_byte)
        for use in (lambda: lm.generate("a"), lambda: lm.generate([1], stop=["a"]), lambda: lm.tokenizer):
            with pytest.raises(OptionError, match="tokenizer"):
                use()


def test_a_prompt_may_be_empty_only_where_a_text_can_begin(lm: LanguageModel) -> None:
    assert lm.generate("", max_new_tokens=2).token_ids
    bare = Tokenizer([bytes([byte]) for byte in range(256)])
    nameless = LanguageModel(lm._session, replace(lm.info, tokenizer=bare, generation={}), lm._decoder)
    with pytest.raises(OptionError, match="no begin token"):
        nameless.generate("")


def test_reference_texts_speed_up_and_change_nothing(lm: LanguageModel) -> None:
    made = lm.generate("the", max_new_tokens=20, lookup=0)
    known = "the" + made.text
    helped = lm.generate("the", max_new_tokens=20, lookup=5, reference=made.token_ids)
    assert helped.token_ids == made.token_ids and helped.stats.passes < made.stats.passes
    assert lm.generate("the", max_new_tokens=20, reference=known).token_ids == made.token_ids


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "no prompt"), (None, {}, "None"), (5, {}, "5"), (["a", []], {}, "empty"), ([["a"]], {}, "U1"),
        ([-1], {}, "-1 is outside"), ([260], {}, "260 is outside"), ([0.5], {}, "float64"),
        (np.zeros((2, 2, 2), int), {}, "shape"), (np.zeros(2), {}, "float64"), (b"abc", {}, "shape"),
        (["a", 5], {}, "shape"), ("a", {"n": 0}, "n is 0"), ("a", {"top": 1}, "unknown option 'top'"),
        ("a", {"allowed_special": ["<x>"]}, "unknown special token '<x>'"), ("a", {"stop": "x"}, "stop"),
        ("a", {"temperature": -1}, "temperature is -1"), ("a", {"temperature": float("nan")}, "temperature is nan"),
        ("a", {"top_p": 0}, "top_p is 0"), ("a", {"top_p": 1.5}, "top_p is 1.5"),
        ("a", {"banned_tokens": [260]}, "260 is outside"), ("a", {"reference": [260]}, "260 is outside"),
        ("a" * 30, {"overflow": "error"}, "exceed the context of 24"),
    ],
)  # fmt: skip
def test_wrong_input_is_named(lm: LanguageModel, prompt: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        lm.generate(prompt, **options)
    assert caught.value.remedy or "template" in str(caught.value)


def test_wrong_input_to_the_other_methods(lm: LanguageModel, chat: LanguageModel) -> None:
    uses: list[tuple[Any, str]] = [
        (lambda: lm.stream("a", temprature=1), "unknown option"),
        (lambda: lm.logits([]), "empty"),
        (lambda: lm.logits([[1], [2, 3]]), "nested"),
        (lambda: lm.logits([1] * 25), "exceed the context"),
        (lambda: lm.logits("text"), "shape|U"),
        (lambda: lm.score(""), "1 tokens"),
        (lambda: lm.score([1]), "1 tokens"),
        (lambda: lm.embed([]), "no text"),
        (lambda: lm.embed(["a", [300]]), "300 is outside"),
        (lambda: lm.embed("a", layer="logits"), "layer"),
        (lambda: lm.embed("a", pooling="max"), "pooling"),
        (lambda: lm.embed("a", batch_size=0), "batch_size"),
        (lambda: lm.chat("Hi"), "messages"),
    ]
    for use, message in uses:
        with pytest.raises(OptionError, match=message):
            use()
    with pytest.raises(ModelFileError, match="no output 'hidden'"):
        chat.embed("a")


def test_a_prompt_longer_than_the_context_says_what_is_left_out(lm: LanguageModel) -> None:
    with pytest.warns(
        ContextWarning, match="30 tokens and the model sees 24: the first 6 are left out"
    ) as caught:
        lm.generate("a" * 30, max_new_tokens=1)
    assert Path(caught[0].filename) == Path(__file__)  # the caller's line, not the library's


def test_ids_that_stand_for_no_text_are_never_chosen(lm: LanguageModel) -> None:
    """Holes of a tokenizer, and rows beyond it, although the model would choose them."""
    size = lm.info.vocab_size
    tokens = [bytes([byte]) for byte in range(256)]
    holed = Tokenizer(tokens, ids=[*range(0, 128), *range(130, 258)])
    assert holed.holes(260) == (128, 129, 258, 259)
    favourite = np.zeros(size, np.float32)

    class Wants(ScriptedDecoder):
        def _logits(self, length: int, count: int) -> Any:
            logits = np.tile(favourite, (count, 1))
            logits[:, [128, 129, size - 1, 65]] = [9, 8, 7, 6]
            return logits

    model = LanguageModel(lm._session, replace(lm.info, tokenizer=holed, generation={}), Wants([0], size))
    for options in ({}, {"banned_tokens": [66]}, {"temperature": 1.0, "seed": 1, "top_k": 1}):
        assert set(model.generate("a", max_new_tokens=4, **options).token_ids) == {65}
