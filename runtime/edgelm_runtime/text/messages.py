"""Conversations as lists of messages: what is accepted, and what a chat template gets to see of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgelm_runtime.errors import OptionError
from edgelm_runtime.validation import shown

Message = Mapping[str, Any]
"""`role` and `content`, and whatever else the model's template reads (`name`, `tool_calls`, ...)."""

ROLES = ("system", "developer", "user", "assistant", "tool")
# The fields under which a model's thinking is handed on. Templates read the first two.
REASONING = ("reasoning_content", "thinking", "reasoning")
DEEPEST = 64


def checked(messages: Sequence[Message], special: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Copies of the messages in plain values, without fields that are None. Raises OptionError.

    Any role that cannot be mistaken for a part of a `special` token is a role; which of them there are is for the
    model's template to say.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise OptionError(
            f"messages is {shown(messages)}", 'give a list such as [{"role": "user", "content": "Hi"}]'
        )
    return [_message(message, special) for message in messages]


def _message(message: Any, special: Iterable[str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise OptionError(f"a message is {shown(message)}", "give role and content, both text")
    made = {name: plain(value) for name, value in message.items() if value is not None}
    role, content = made.get("role"), made.get("content")
    if not isinstance(role, str) or not role or len(role) > 64 or not role.isprintable():
        raise OptionError(f"a message has role {shown(role)}", f"choose one of {', '.join(ROLES)}")
    if role not in ROLES and any(role in text for text in special):
        raise OptionError(f"a message has role {role!r}, a part of a special token", "choose another name")
    if isinstance(content, list):
        made["content"] = [_part(part) for part in content]
    elif not isinstance(content, str) and not (content is None and made.get("tool_calls")):
        raise OptionError(f"a message is {shown(message)}", "give role and content, both text")
    thought = next((made[name] for name in REASONING if name in made), None)
    return made if thought is None else {"thinking": thought, **made, "reasoning_content": thought}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return part
    kind = part.get("type") if isinstance(part, dict) else part
    raise OptionError(
        f"a part of a message is {shown(kind)}", 'edgelm takes {"type": "text", "text": ...} only'
    )


def plain(value: Any, depth: int = 0) -> Any:
    """A copy in the values of JSON, which is all that a template may hold. Raises OptionError for others."""
    if depth > DEEPEST:
        raise OptionError(f"a value of a message is nested more than {DEEPEST} levels deep", "flatten it")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    raise OptionError(f"a value of a message is {shown(value)}", "give text, numbers, lists and mappings")


def text_size(value: Any) -> int:
    """Characters and items in a plain value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + text_size(item) for key, item in value.items())
    return 1 + sum(map(text_size, value)) if isinstance(value, list) else 1


def joined_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the parts of its content as one text, a part a line."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    return {**message, "content": "\n".join(part["text"] for part in content)}


def as_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its content as a list of one part."""
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message)
    return {**message, "content": [{"type": "text", "text": content}]}
