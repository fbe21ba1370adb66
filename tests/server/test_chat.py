"""POST /v1/chat/completions, through the real client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from edgelm_runtime.language_model import LanguageModel

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Write a class."}]
SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["size", "count"],
    "additionalProperties": False,
}  # fmt: skip


def chat(client: OpenAI, messages: Any = MESSAGES, **options: Any) -> Any:
    return client.chat.completions.create(model="python", messages=messages, **options)


def test_the_answer_is_the_runtimes(client: OpenAI, lm: LanguageModel) -> None:
    expected = lm.chat(MESSAGES, max_new_tokens=12)
    for name in ("max_tokens", "max_completion_tokens"):
        answer = chat(client, **{name: 12})
        (choice,) = answer.choices
        assert choice.message.role == "assistant" and choice.message.content == expected.text
        assert choice.finish_reason == "length" and choice.message.tool_calls is None
    prompt_tokens = len(lm.chat_prompt(MESSAGES))
    usage = answer.usage.model_dump(exclude_none=True)
    assert usage == {
        "prompt_tokens": prompt_tokens, "completion_tokens": 12, "total_tokens": prompt_tokens + 12,
    }  # fmt: skip
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")


def test_an_answer_goes_on_to_the_end_of_the_context(client: OpenAI, lm: LanguageModel) -> None:
    ends = {str(token_id): -100 for token_id in lm.info.end_ids}
    answer = chat(client, logit_bias=ends)
    assert answer.usage.total_tokens == lm.info.context_length
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_keeps_to_the_rules(client: OpenAI, lm: LanguageModel) -> None:
    expected = lm.chat(MESSAGES, n=2, seed=4, temperature=0.8, max_new_tokens=12)
    chunks = list(
        chat(
            client,
            n=2,
            seed=4,
            temperature=0.8,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant" and choices[0].delta.content == ""
        assert all(choice.delta.role is None for choice in choices[1:])
        assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        assert choices[-1].delta.content is None
        assert "".join(choice.delta.content or "" for choice in choices) == expected[index].text
    plain = list(chat(client, max_tokens=2, stream=True))
    assert all(chunk.choices and "usage" not in chunk.model_fields_set for chunk in plain)


def test_the_stream_ends_with_done(client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="python", messages=MESSAGES, max_tokens=2, stream=True
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    assert json.loads(lines[0][6:])["choices"][0]["finish_reason"] is None


def test_messages_of_every_form(client: OpenAI, lm: LanguageModel) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Write"}, {"type": "text", "text": "a class."}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]  # fmt: skip
    answer = chat(client, messages, max_tokens=8)
    assert answer.choices[0].message.content == lm.chat(messages, max_new_tokens=8).text
    opened: Any = [*MESSAGES, {"role": "assistant", "content": "class Reader"}]
    answer = chat(client, opened, max_tokens=8, extra_body={"continue_final_message": True})
    expected = lm.chat(opened, max_new_tokens=8, continue_final_message=True)
    assert answer.choices[0].message.content == expected.text


def test_options_reach_the_runtime(client: OpenAI, lm: LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "top_p": 0.8, "frequency_penalty": 0.5, "seed": 3}
    expected = lm.chat(MESSAGES, max_new_tokens=30, stop=["\n"], **options)
    answer = chat(client, max_tokens=30, stop="\n", **options)
    assert answer.choices[0].message.content == expected.text
    # A seed may be negative, as it may with OpenAI.
    first, second = (chat(client, max_tokens=9, temperature=1.0, seed=-5) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    predicted = chat(client, max_tokens=9, prediction={"type": "content", "content": "class A:"})
    assert predicted.choices[0].message.content == lm.chat(MESSAGES, max_new_tokens=9).text


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(client: OpenAI, lm: LanguageModel, stream: bool) -> None:
    expected = lm.chat(MESSAGES, max_new_tokens=8, logprobs=3)
    answer = chat(client, max_tokens=8, logprobs=True, top_logprobs=3, stream=stream)
    tokens = [
        token
        for part in (answer if stream else [answer])
        for choice in part.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert [token.logprob for token in tokens] == expected.logprobs
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == expected.text
    assert expected.top_logprobs is not None
    for token, top in zip(tokens, expected.top_logprobs, strict=True):
        assert [entry.logprob for entry in token.top_logprobs] == [value for _, value in top]
    bare = chat(client, max_tokens=1, logprobs=True).choices[0].logprobs.content
    assert bare[0].top_logprobs == []


@pytest.mark.parametrize("stream", [False, True])
def test_json_by_schema(client: OpenAI, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}}
    answer = chat(client, response_format=form, temperature=1.0, seed=1, stream=stream)
    text = (
        "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        if stream
        else answer.choices[0].message.content
    )
    values = json.loads(text)
    assert values["size"] in ("small", "large") and 1 <= values["count"] <= 9 and len(values) == 2


def test_json_of_any_kind(client: OpenAI) -> None:
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=60)
    assert answer.choices[0].message.content.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    chat(client, response_format={"type": "text"}, max_tokens=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": None}, "messages is missing"),
        ({"messages": []}, "messages is missing"),
        ({"messages": "Hi"}, 'messages is "Hi"; give a list'),
        ({"messages": [5]}, "message"),
        ({"messages": [{"role": "", "content": "Hi"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
         "'image_url'"),
        ({"functions": [{"name": "f"}]}, "functions is not supported; give tools"),
        ({"modalities": ["audio"]}, "modalities is not supported; only text is made"),
        ({"reasoning_effort": "high"}, "takes no 'reasoning_effort'"),
        ({"chat_template_kwargs": {"x": 1}}, "takes no 'x'"),
        ({"continue_final_message": True}, "no answer to continue"),
        ({"add_generation_prompt": False}, "add_generation_prompt is not supported"),
        ({"web_search_options": {}}, "web_search_options is not supported"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens is 3 and max_completion_tokens 4"),
        ({"top_logprobs": 2}, "top_logprobs is given without logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; give a whole number from 0 to 20"),
        ({"logprobs": 1}, "logprobs is 1; give true or false"),
        ({"response_format": {"type": "xml"}}, "response_format is"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "wrong"}}}}, "constraint"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage is 1"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other is not supported"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(client: OpenAI, fields: dict[str, Any], message: str) -> None:
    body = {"model": "python", "messages": MESSAGES, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", cast_to=object, body=body)
    assert message in caught.value.message


def test_a_conversation_that_does_not_fit_is_refused_with_both_numbers(
    client: OpenAI, lm: LanguageModel
) -> None:
    messages = [{"role": "user", "content": "word " * 600}]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages, stream=True)
    length = len(lm.chat_prompt(messages))
    assert f"the prompt has {length} tokens and the context {lm.info.context_length}" in caught.value.message
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
