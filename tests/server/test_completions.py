"""POST /v1/completions, through the real client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from servers import serving

import edgelm
from edgelm_runtime.language_model import LanguageModel

DATA = Path(__file__).parents[1] / "runtime/data"
PROMPT = "def read_json(path):\n"


def test_the_text_is_the_runtimes(client: OpenAI, lm: LanguageModel) -> None:
    expected = lm.generate(PROMPT, max_new_tokens=20)
    answer = client.completions.create(model="python", prompt=PROMPT, max_tokens=20)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (expected.text, "length", None)
    assert answer.id.startswith("cmpl-") and answer.model == "python" and answer.usage is not None
    prompt_tokens = len(lm.encode_prompt(PROMPT))
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": prompt_tokens, "completion_tokens": 20, "total_tokens": prompt_tokens + 20,
    }  # fmt: skip
    assert client.completions.create(model="other-name", prompt=PROMPT).usage.completion_tokens == 16  # type: ignore[union-attr]


def test_prompts_of_every_form(client: OpenAI, lm: LanguageModel) -> None:
    ids = lm.tokenizer.encode(PROMPT)
    other = lm.tokenizer.encode("import os")
    expected = [lm.generate(prompt, max_new_tokens=5).text for prompt in (ids, other)]
    for prompt in (ids, [ids], [ids, other], [PROMPT, "import os"]):
        answer = client.completions.create(model="python", prompt=prompt, max_tokens=5)  # type: ignore[arg-type]
        assert [choice.text for choice in answer.choices] == expected[: len(answer.choices)]
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    # More prompts than slots and queue together have room for.
    answer = client.completions.create(model="python", prompt=["a", "b", "c"] * 30, max_tokens=1)
    assert len(answer.choices) == 90 and answer.usage is not None and answer.usage.completion_tokens == 90


def test_several_texts_of_a_seed_are_those_of_the_runtime(client: OpenAI, lm: LanguageModel) -> None:
    expected = lm.generate(PROMPT, n=3, seed=7, temperature=1.0, max_new_tokens=12)
    for stream in (False, True):
        answer = client.completions.create(
            model="python", prompt=PROMPT, n=3, seed=7, temperature=1.0, max_tokens=12, stream=stream
        )
        texts = [""] * 3
        for part in answer if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == [result.text for result in expected]
        assert len(set(texts)) == 3


def test_options_reach_the_runtime(client: OpenAI, lm: LanguageModel) -> None:
    favourite = lm.tokenizer.encode("x")[0]
    text = client.completions.create(
        model="python", prompt=PROMPT, max_tokens=4, logit_bias={str(favourite): 100}
    ).choices[0]
    assert text.text == "xxxx"
    stopped = client.completions.create(model="python", prompt=PROMPT, max_tokens=4, stop=["x", "y"],
                                        logit_bias={str(favourite): 100}).choices[0]  # fmt: skip
    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    options = {"temperature": 0.9, "top_p": 0.8, "frequency_penalty": 0.5, "presence_penalty": 0.1, "seed": 3}
    more = {"top_k": 20, "min_p": 0.01, "repeat_penalty": 1.1}
    answer = client.completions.create(
        model="python",
        prompt=PROMPT,
        max_tokens=20,
        **options,
        extra_body=more,  # type: ignore[arg-type]
    )
    assert answer.choices[0].text == lm.generate(PROMPT, max_new_tokens=20, **options, **more).text  # type: ignore[call-overload]
    answer = client.completions.create(model="python", prompt="a", extra_body={"choices": ["yes", "no"]})
    assert answer.choices[0].text in ("yes", "no") and answer.choices[0].finish_reason == "stop"


def test_a_stream_adds_up_to_the_text(client: OpenAI, lm: LanguageModel) -> None:
    expected = lm.generate(PROMPT, max_new_tokens=20).text
    stream = client.completions.create(
        model="python", prompt=PROMPT, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == expected
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-2:] == [None, "length"]
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_echo_scores_the_prompt(client: OpenAI, lm: LanguageModel, stream: bool) -> None:
    ids = lm.tokenizer.encode("def write_json(path):\n    with open(path) as file:\n")
    answer = client.completions.create(
        model="python", prompt=ids, max_tokens=1, echo=True, logprobs=2, temperature=0, stream=stream
    )
    text, tokens, values, top, offsets = "", [], [], [], []
    for part in answer if stream else [answer]:
        for choice in part.choices:
            text += choice.text
            tokens += choice.logprobs.tokens
            values += choice.logprobs.token_logprobs
            top += choice.logprobs.top_logprobs
            offsets += choice.logprobs.text_offset
    # The new token counts even where it ends the text, since evaluations leave out the last one.
    assert len(tokens) == len(ids) + 1 and tokens[-1] == "<|endoftext|>"
    assert text == "".join(tokens[:-1])
    assert [text[start:end] for start, end in pairwise(offsets)] == tokens[:-1]
    assert (values[0], top[0]) == (None, None)
    assert values[1:-1] == lm.score(ids).logprobs.tolist()
    for token, value, likeliest in zip(tokens[1:], values[1:], top[1:], strict=True):
        assert likeliest[token] == value and len(likeliest) in (2, 3)
    assert values[-1] == max(top[-1].values())  # the new token is the likeliest


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text"),
    [("gamma", "alpha beta "), ("mma", "alpha beta ga"), ("gammon", "alpha beta gamma delta")],
)
def test_logprobs_are_those_of_the_text(client: OpenAI, stream: bool, stop: str, text: str) -> None:
    """Tokens of a stop string never appear; those that were held back for one appear with their text."""
    answer = client.completions.create(
        model="python", prompt="a", max_tokens=40, stop=stop, logprobs=0, stream=stream,
        extra_body={"regex": "alpha beta gamma delta"},
    )  # fmt: skip
    shown, tokens, offsets = "", [], []
    for part in answer if stream else [answer]:
        (choice,) = part.choices
        shown += choice.text
        tokens += choice.logprobs.tokens
        offsets += choice.logprobs.text_offset
        # A token may reach into the stop string, but none begins there.
        assert not offsets or (offsets[-1] < len(shown) and "".join(tokens).startswith(shown))
    assert shown == text and len(offsets) == len(tokens)
    assert [text[start:end] for start, end in pairwise(offsets)] == tokens[:-1]


def test_echo_without_a_new_token_and_without_scores(client: OpenAI, lm: LanguageModel) -> None:
    (choice,) = client.completions.create(
        model="python", prompt="import os", echo=True, max_tokens=0, logprobs=0
    ).choices
    assert (choice.text, choice.finish_reason) == ("import os", "length")
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[1:] == lm.score("import os").logprobs.tolist()
    (choice,) = client.completions.create(model="python", prompt="a", echo=True, max_tokens=2).choices
    assert choice.text.startswith("a") and choice.logprobs is None
    one = lm.tokenizer.encode("a")[:1]
    (choice,) = client.completions.create(
        model="python", prompt=one, echo=True, max_tokens=0, logprobs=1
    ).choices
    assert choice.logprobs is not None and choice.logprobs.token_logprobs == [None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suffix": "end"}, "suffix is not supported"),
        ({"best_of": 3}, "best_of is not supported; ask for n texts"),
        ({"nonsense": 1}, "nonsense is not supported; leave it out"),
        ({"max_tokens": -1}, "max_tokens is -1; give a whole number"),
        ({"temperature": -1}, "temperature is -1; give a"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"n": 0}, "n is 0; give a whole number from 1 to 128"),
        ({"n": True}, "n is true"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"logit_bias": {"a": 1}}, 'logit_bias is {"a": 1}; name tokens by their ids'),
        ({"logit_bias": {"99999999": 1}}, "outside the vocabulary"),
        ({"stop": [""]}, "stop string is empty"),
        ({"stop": 5}, "stop is 5"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"prompt": []}, "prompt is []"),
        ({"prompt": [["a"]]}, "token ids"),
        ({"prompt": [1, "a"]}, "prompt is [1, "),
        ({"prompt": [99999999]}, "outside the vocabulary"),
        ({"prompt": None}, "prompt is missing"),
        ({"prompt": {"a": 1}}, "prompt is"),
        ({"stream": "yes"}, "stream is"),
        ({"stream_options": {"include_usage": True}}, "without stream"),
        ({"regex": "("}, "constraint"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: OpenAI, fields: dict[str, object], message: str
) -> None:
    body = {"model": "python", "prompt": "a", **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/completions", cast_to=object, body=body)
    assert message in caught.value.message
    assert caught.value.type == "invalid_request_error"


def test_what_asks_for_nothing_is_taken(client: OpenAI) -> None:
    client.completions.create(
        model="python", prompt="a", max_tokens=1, suffix="", best_of=1, user="someone",
        extra_body={"metadata": {"a": "b"}, "logprobs": None, "stream_options": None},
    )  # fmt: skip


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(client: OpenAI, lm: LanguageModel) -> None:
    context = lm.info.context_length
    for length in (context, context + 1):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="python", prompt=[7] * length)
        assert f"the prompt has {length} tokens and the context {context}" in caught.value.message
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    answer = client.completions.create(
        model="python", prompt=[7] * (context - 3), max_tokens=1000, logit_bias={"8": 100}
    )
    assert answer.choices[0].finish_reason == "length" and answer.usage is not None
    assert answer.usage.total_tokens == context


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-9", prompt="a")
    assert "there is no model 'gpt-9'; this server has 'python', 'other-name'" in caught.value.message
    assert caught.value.code == "model_not_found"


def test_a_file_with_a_cache_gives_and_scores_the_same(client: OpenAI) -> None:
    with edgelm.load(DATA / "cached.onnx") as lm, serving(lm, parallel=2) as url:
        asker = OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        prompts = ["The thing", "in", "The thin", "a"]
        expected = [lm.generate(prompt, max_new_tokens=6).text for prompt in prompts]

        def ask(_: int) -> None:
            answer = asker.completions.create(
                model="model", prompt=prompts, max_tokens=6, temperature=0, echo=True, logprobs=1
            )
            for choice, prompt, text in zip(answer.choices, prompts, expected, strict=True):
                assert choice.text == prompt + text
                scores = lm.score(prompt).logprobs.tolist() if len(lm.encode_prompt(prompt)) > 1 else []
                assert choice.logprobs.token_logprobs[1 : len(scores) + 1] == pytest.approx(scores, abs=1e-4)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, range(12)))
