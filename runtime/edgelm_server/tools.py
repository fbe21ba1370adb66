"""Tools: what a request offers, the JSON that a call must be, and calls found in a model's text.

Models write calls the way they were trained to. Understood are JSON objects with `name` and `arguments` (or
`parameters`), alone, as a list, or inside one of MARKS. What is no call of an offered tool stays text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgelm_server.errors import ApiError
from edgelm_server.fields import Fields

# Where calls begin, and end, in the text of a model that marks them (Qwen, SmolLM, Hermes; Mistral; Llama).
MARKS = (("<tool_call>", "</tool_call>"), ("[TOOL_CALLS]", ""), ("<|python_tag|>", ""))
STARTS = tuple(start for start, _ in MARKS)
ANY_OBJECT = {"type": "object"}

Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Tools:
    """The functions offered (by name, as the request gives them), and whether one must be called."""

    offered: Mapping[str, Mapping[str, Any]]
    listed: Sequence[Mapping[str, Any]]
    choice: Choice = "none"
    parallel: bool = True

    @property
    def active(self) -> bool:
        return self.choice != "none"

    @property
    def forced(self) -> bool:
        return self.choice == "required"

    @property
    def schema(self) -> dict[str, Any]:
        """What the text must be where a call is forced: JSON of one call."""
        calls = [_call_schema(name, tool) for name, tool in self.offered.items()]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}


@dataclass(frozen=True)
class Call:
    """A call that the model makes; `arguments` is a JSON object as text."""

    name: str
    arguments: str

    def message(self, index: int | None = None) -> dict[str, Any]:
        """The call as a message of the assistant has it; with its `index`, as a chunk has it."""
        return {
            **({} if index is None else {"index": index}),
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def take_tools(fields: Fields) -> Tools:
    """The tools of a request. Raises ApiError for what is no tool, and for a choice that is not among them."""
    listed = fields.list("tools") or []
    choice = fields.take("tool_choice", "auto" if listed else "none")
    parallel = fields.flag("parallel_tool_calls", True)
    offered = dict(_named(fields, tool) for tool in listed)
    if isinstance(choice, dict):
        function = choice.get("function") if choice.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if name not in offered:
            raise fields.wrong("tool_choice", choice, "name one of the tools")
        return Tools({name: offered[name]}, listed, "required", False)
    if choice not in ("none", "auto", "required"):
        raise fields.wrong("tool_choice", choice, "give none, auto, required, or a function")
    if choice == "required" and not offered:
        raise ApiError(400, "tool_choice is required and there are no tools; give some", param="tool_choice")
    return Tools(offered, listed, choice, parallel)


def _named(fields: Fields, tool: Any) -> tuple[str, dict[str, Any]]:
    """A tool's function, by its name. Raises ApiError where it is none."""
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if (
        not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
        or not isinstance(function.get("parameters") or {}, dict)
    ):
        raise fields.wrong("tools", tool, 'give {"type": "function", "function": {"name": ...}}')
    return function["name"], function


def _call_schema(name: str, function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": function.get("parameters") or ANY_OBJECT},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def split_calls(text: str, tools: Tools) -> tuple[str, list[Call]]:
    """The text before the first call, and the calls; all of the text where there is none."""
    at, end, found = _first_mark(text)
    if found:
        parts = text[at + len(found) :].split(found)
        bodies = [part.split(end)[0] if end else part for part in parts]
    else:
        at, bodies = 0, [text]
    calls = [call for body in bodies for call in _parse(body, tools.offered)]
    if not calls:
        return text, []
    return text[:at].rstrip(), calls if tools.parallel else calls[:1]


def may_begin_call(text: str) -> int:
    """Where in `text` a call begins or may be about to; its length where none is in sight."""
    if text.lstrip()[:1] in ("", "{", "["):
        return 0
    at, _, found = _first_mark(text)
    if found:
        return at
    longest = max(map(len, STARTS))
    for start in range(max(0, len(text) - longest), len(text)):
        if any(mark.startswith(text[start:]) for mark in STARTS):
            return start
    return len(text)


def _first_mark(text: str) -> tuple[int, str, str]:
    """(place, end mark, mark) of the first mark in `text`; no mark where there is none."""
    places = [(text.find(start), end, start) for start, end in MARKS if start in text]
    return min(places, default=(len(text), "", ""))


def _parse(text: str, offered: Mapping[str, Any]) -> list[Call]:
    """The calls in a JSON object, or in a list of them; none where `text` is something else."""
    try:
        values, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return []
    calls = []
    for value in values if isinstance(values, list) else [values]:
        if not isinstance(value, dict) or value.get("name") not in offered:
            return []
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _loaded(arguments)
        if not isinstance(arguments, dict):
            return []
        calls.append(Call(value["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
