"""Tools: offered through the template, called in the model's words, forced by a constraint."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from servers import serving

import edgelm
from edgelm_runtime.language_model import LanguageModel
from edgelm_server.tools import Tools, may_begin_call, split_calls

MESSAGES: Any = [{"role": "user", "content": "How is the weather in Oslo?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a place",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
        "required": ["place", "days"],
        "additionalProperties": False,
    },
}  # fmt: skip
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS: Any = [{"type": "function", "function": function} for function in (WEATHER, CLOCK)]
CALL = '{"name": "get_weather", "arguments": {"place": "Oslo", "days": 2}}'


def collected(answer: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """Content, calls and finish reason of an answer or of a stream."""
    if hasattr(answer, "choices"):
        (choice,) = answer.choices
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        assert all(
            call.id.startswith("call_") and call.type == "function"
            for call in choice.message.tool_calls or []
        )
        return choice.message.content, calls, choice.finish_reason
    text, calls, reason = "", [], ""
    for chunk in answer:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            assert call.index == len(calls) and call.id and call.type == "function"
            calls.append((call.function.name, call.function.arguments))
        reason = choice.finish_reason or reason
    return text or None, calls, reason


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_content(client: OpenAI, stream: bool) -> None:
    for written, content in ((f"Well: <tool_call>{CALL}</tool_call>", "Well:"), ("Well: <tool shed",) * 2):
        answer = client.chat.completions.create(
            model="python", messages=MESSAGES, tools=TOOLS, max_tokens=99, logprobs=True, stream=stream,
            extra_body={"choices": [written]},
        )  # fmt: skip
        tokens = [
            token.token
            for part in (answer if stream else [answer])
            for choice in part.choices
            if choice.logprobs
            for token in choice.logprobs.content
        ]
        # The last token may reach into the call, but none begins there.
        assert "".join(tokens).startswith(content) and content.startswith("".join(tokens[:-1]))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "clock"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ],
)
def test_a_forced_call_is_one(client: OpenAI, choice: Any, names: set[str], stream: bool) -> None:
    for seed in range(2):
        answer = client.chat.completions.create(
            model="python", messages=MESSAGES, tools=TOOLS, tool_choice=choice, temperature=1.5, seed=seed,
            stream=stream,
        )  # fmt: skip
        content, calls, reason = collected(answer)
        assert (content, reason, len(calls)) == (None, "tool_calls", 1)
        name, arguments = calls[0]
        assert name in names
        values = json.loads(arguments)
        if name == "get_weather":
            assert values["place"] in ("Oslo", "Rome") and 1 <= values["days"] <= 3 and len(values) == 2
        else:
            assert values == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"Let me see. <tool_call>{CALL}</tool_call>", "Let me see.", 1),
        (f"<tool_call>{CALL}</tool_call> <tool_call>{CALL}</tool_call>", None, 2),
        (CALL, None, 1),
        (f"[{CALL}, {CALL}]", None, 2),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', 0),
        ("It is <b>fine</b>, and x < 3.", "It is <b>fine</b>, and x < 3.", 0),
    ],
)
def test_calls_are_found_in_the_models_text(
    client: OpenAI, text: str, content: str | None, calls: int, stream: bool
) -> None:
    answer = client.chat.completions.create(
        model="python", messages=MESSAGES, tools=TOOLS, stream=stream, extra_body={"choices": [text]}
    )
    found = collected(answer)
    assert found[0] == content or (found[0] or "").rstrip() == content
    assert found[2] == ("tool_calls" if calls else "stop")
    assert [json.loads(arguments) for _, arguments in found[1]] == [{"place": "Oslo", "days": 2}] * calls


def test_one_call_where_no_more_are_wanted(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="python", messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False,
        extra_body={"choices": [f"[{CALL}, {CALL}]"]},
    )  # fmt: skip
    assert len(collected(answer)[1]) == 1


def test_no_tool_is_called_where_none_is_to_be(client: OpenAI, lm: LanguageModel) -> None:
    answer = client.chat.completions.create(
        model="python", messages=MESSAGES, tools=TOOLS, tool_choice="none", extra_body={"choices": [CALL]}
    )
    assert collected(answer) == (CALL, [], "stop")
    assert answer.usage is not None and answer.usage.prompt_tokens == len(lm.chat_prompt(MESSAGES))


def test_the_template_sees_the_tools_and_earlier_calls(client: OpenAI, lm: LanguageModel) -> None:
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]  # fmt: skip
    answer = client.chat.completions.create(model="python", messages=messages, tools=TOOLS, max_tokens=3)
    expected = lm.chat_prompt(messages, tools=TOOLS)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(expected)
    assert "The weather of a place" in lm.tokenizer.decode(expected)


def test_a_call_that_is_cut_short_is_no_call(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="python", messages=MESSAGES, tools=TOOLS, tool_choice="required", max_tokens=3
    )
    content, calls, reason = collected(answer)
    assert (calls, reason) == ([], "length") and (content or "").startswith("{")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools is"),
        ({"tools": [5]}, "tools is 5"),
        ({"tools": TOOLS, "tool_choice": "perhaps"}, 'tool_choice is "perhaps"'),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "name one of the tools",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": 1}}, "name one of the tools"),
        ({"tool_choice": "required"}, "there are no tools"),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "another form",
        ),
    ],
)
def test_what_is_no_tool(client: OpenAI, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post(
            "/chat/completions", cast_to=object, body={"model": "python", "messages": MESSAGES, **fields}
        )
    assert message in caught.value.message


def test_a_model_without_a_place_for_tools_says_so() -> None:
    with edgelm.load() as plain, serving(plain) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="model", messages=MESSAGES, tools=TOOLS)
        assert "tools" in caught.value.message and "no chat template" in caught.value.message
        answer = client.chat.completions.create(model="model", messages=MESSAGES, max_tokens=8)
        assert answer.choices[0].message.content == plain.chat(MESSAGES, max_new_tokens=8).text


AUTO = Tools({"get_weather": WEATHER, "clock": CLOCK}, TOOLS, "auto")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f'[TOOL_CALLS] [{CALL}]', "", 1),
        ('<|python_tag|>{"name": "clock", "parameters": {}}', "", 1),
        ('<tool_call>\n{"name": "clock"}\n</tool_call>', "", 1),
        ('<tool_call>{"name": "clock", "arguments": "{}"}</tool_call>', "", 1),
        ('<tool_call>{"name": "clock", "argu', '<tool_call>{"name": "clock", "argu', 0),
        ('{"name": "clock", "arguments": 5}', '{"name": "clock", "arguments": 5}', 0),
        ("{" * 5000, "{" * 5000, 0),
        ("[1, 2]", "[1, 2]", 0),
        ("", "", 0),
    ],
)  # fmt: skip
def test_forms_of_calls(text: str, content: str, calls: int) -> None:
    found, made = split_calls(text, AUTO)
    assert (found, len(made)) == (content, calls)


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("", 0),
        ("{", 0),
        (" [", 0),
        ("Hi", 2),
        ("Hi <", 3),
        ("Hi <tool", 3),
        ("Hi <tool_call>x", 3),
        ("a < b", 5),
    ],
)
def test_text_is_held_back_only_where_a_call_may_begin(text: str, certain: int) -> None:
    assert may_begin_call(text) == certain
