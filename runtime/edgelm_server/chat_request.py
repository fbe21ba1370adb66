"""What a chat request asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelm_runtime.prompts import TemplateOptions
from edgelm_runtime.text.chat_template import PLAIN_STOP
from edgelm_runtime.text.messages import joined_parts
from edgelm_server.errors import ApiError
from edgelm_server.fields import Fields
from edgelm_server.logprobs import MOST_ALTERNATIVES
from edgelm_server.options import new_tokens, take_count, take_options, take_usage_wish
from edgelm_server.service import Service
from edgelm_server.texts import Job
from edgelm_server.tools import Tools, take_tools


@dataclass(frozen=True)
class Chat:
    """A request, understood."""

    jobs: list[Job]
    tools: Tools
    logprobs: bool
    stream: bool
    include_usage: bool


def read_chat(fields: Fields, service: Service) -> Chat:
    """Understand the fields. Raises ApiError and OptionError for what cannot be done."""
    options = take_options(fields)
    samples = take_count(fields)
    wanted = _wanted_tokens(fields)
    tools = take_tools(fields)
    if schema := _take_schema(fields):
        options["json_schema"] = schema
    if tools.forced:
        if options.keys() & {"json_schema", "regex", "choices"}:
            raise ApiError(400, "a call is required and another form as well; give one of them")
        options["json_schema"] = tools.schema
    elif tools.active:
        options["keep_special"] = True  # models mark their calls with such tokens
    if prediction := fields.mapping("prediction"):
        options["reference"] = joined_parts(prediction).get("content", "")
    logprobs = _take_logprobs(fields, options)
    stream = fields.flag("stream")
    include_usage = take_usage_wish(fields, stream)
    fields.refuse("modalities", unless=(["text"],))
    prompt = take_prompt(fields, service, tools)
    fields.finish()
    if service.lm.info.chat_template is None:
        options["stop"] = [*options.get("stop", ()), PLAIN_STOP]
    options["max_new_tokens"] = new_tokens(len(prompt), service.lm.info.context_length, wanted, "messages")
    options["max_time"] = service.settings.max_time
    jobs = [Job(np.asarray(prompt, np.int64), options, sample) for sample in range(samples)]
    return Chat(jobs, tools, logprobs, stream, include_usage)


def _wanted_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens`, or `max_tokens` as it was called before."""
    old = fields.whole("max_tokens", 0, 1 << 32)
    new = fields.whole("max_completion_tokens", 0, 1 << 32)
    if old is not None and new is not None and old != new:
        raise ApiError(
            400, f"max_tokens is {old} and max_completion_tokens {new}; give one", param="max_tokens"
        )
    return old if new is None else new


def _take_schema(fields: Fields) -> Mapping[str, Any] | None:
    """The JSON schema that `response_format` asks for; None where it asks for plain text."""
    form = fields.mapping("response_format")
    kind = None if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = form.get("json_schema")
    if kind == "json_schema" and isinstance(described, dict) and isinstance(described.get("schema"), dict):
        schema: dict[str, Any] = described["schema"]
        return schema
    raise fields.wrong(
        "response_format", form, "give the type text, json_object, or json_schema with json_schema.schema"
    )


def _take_logprobs(fields: Fields, options: dict[str, Any]) -> bool:
    logprobs = fields.flag("logprobs")
    alternatives = fields.whole("top_logprobs", 0, MOST_ALTERNATIVES)
    if alternatives and not logprobs:
        raise ApiError(400, "top_logprobs is given without logprobs; set logprobs", param="top_logprobs")
    if logprobs:
        options["logprobs"] = alternatives or 0
    return logprobs


def take_prompt(fields: Fields, service: Service, tools: Tools) -> list[int]:
    """Token ids of the conversation. Raises OptionError for messages that the model's template refuses."""
    messages = fields.list("messages")
    if not messages:
        raise ApiError(400, "messages is missing; give a list of messages", param="messages")
    variables = fields.mapping("chat_template_kwargs") or {}
    if effort := fields.text("reasoning_effort"):
        variables["reasoning_effort"] = effort
    options: TemplateOptions = {"template_options": variables}
    if tools.active:
        options["tools"] = tools.listed
    options["continue_final_message"] = fields.flag("continue_final_message")
    fields.refuse("add_generation_prompt", unless=(not options["continue_final_message"],))
    return service.lm.chat_prompt([_with_parsed_calls(message) for message in messages], **options)


def _with_parsed_calls(message: Any) -> Any:
    """The message with the arguments of its calls as objects: OpenAI sends them as JSON, templates write JSON."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_parsed(call) for call in calls]}


def _parsed(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
