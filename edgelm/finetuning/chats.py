"""What a record of a data file says, by its fields.

messages                   [{"role": ..., "content": ...}, ...], and `tools` where there are some
conversations              ShareGPT's: [{"from": "human", "value": ...}, ...], and `system`
prompt, completion         a question and its answer, both text or both messages
instruction, output        alpaca's, with `input` and `system` where there are some
chosen, rejected           two answers: text after `prompt`, or messages
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelm.data.documents import Piece, Reading, cut, read_records
from edgelm.data.formats import BOM, format_of, opened
from edgelm_runtime.errors import DataError

Messages = list[dict[str, Any]]
ROLES = ("system", "developer", "user", "assistant", "tool")
_SHAREGPT_ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "model": "assistant", "bot": "assistant", "system": "system", "tool": "tool", "function": "tool",
    "observation": "tool",
}  # fmt: skip


@dataclass(frozen=True)
class Chat:
    """A conversation; `rejected` is the worse of two last answers, where the record has both."""

    messages: Messages
    tools: list[dict[str, Any]] | None = None
    rejected: Messages | None = None

    def to_dict(self) -> dict[str, Any]:
        """As a record of the kind `messages`."""
        return {"messages": self.messages, **({"tools": self.tools} if self.tools else {})}


def is_chat(record: object) -> bool:
    """Whether a record has the fields of a chat."""
    return isinstance(record, Mapping) and _reader(record) is not None


def read_chat(record: object, where: str) -> Chat:
    """The chat of a record. Raises DataError that says what is wrong with it."""
    reader = _reader(record) if isinstance(record, Mapping) else None
    if reader is None or not isinstance(record, Mapping):
        shown = (
            ", ".join(map(str, record)) if isinstance(record, Mapping) else json.dumps(record, default=str)
        )
        raise DataError(
            f"{where}, is no chat: {shown[:60]}",
            "a chat has messages, conversations, prompt and completion, or instruction and output",
        )
    chat = reader(record, where)
    _check(chat.messages, where)
    if chat.rejected is not None:
        _check(chat.rejected, where)
        if chat.messages[:-1] != chat.rejected[:-1]:
            raise DataError(f"{where}, has two answers to different questions", "leave it out")
    return chat


def chats_in(piece: Piece, reading: Reading) -> Iterator[tuple[str, Chat]]:
    """The chats of a piece, each with its place; bad ones are left out or raise DataError, as `reading` says."""
    for where, record in _records(piece, reading):
        try:
            yield where, read_chat(record, where)
        except DataError as problem:
            reading.leave_out_record(problem)


def holds_chats(path: Path, reading: Reading) -> bool:
    """Whether the first record of a file is a chat, and not a document with text in the field to read."""
    size = next((piece.stop for piece in cut([path], reading)), 0)
    lenient = Reading(reading.field, reading.encoding, reading.replace, most_bad=16)
    try:
        for _, record in _records(Piece(path, 0, size, size), lenient):
            text = record.get(reading.field) if isinstance(record, Mapping) else None
            return is_chat(record) and not isinstance(text, str)
    except DataError:  # it is said where the data is read
        return False
    return False


def _records(piece: Piece, reading: Reading) -> Iterator[tuple[str, Any]]:
    path = piece.path
    if format_of(path).layout != "text":
        yield from read_records(piece, reading)
        return
    if piece.start:  # a .json file is read whole
        return
    for number, record in enumerate(_json_array(path), start=1):
        yield f"{path}, entry {number}", record


def _json_array(path: Path) -> list[Any]:
    """The objects of a .json file that is one list of them; none for anything else."""
    names = [suffix.lower() for suffix in path.suffixes]
    if ".json" not in names[-2:]:
        return []
    with opened(path, format_of(path).compression) as file:
        start = file.read(1 << 12).removeprefix(BOM).lstrip()
        if not (start.startswith(b"[") and start[1:].lstrip().startswith(b"{")):
            return []
    with opened(path, format_of(path).compression) as file:
        try:
            values = json.loads(file.read().removeprefix(BOM))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is no JSON: {error}", "mend it") from error
    return values if isinstance(values, list) else []


def _reader(record: Mapping[str, Any]) -> Callable[[Mapping[str, Any], str], Chat] | None:
    for names, reader in _READERS:
        if all(name in record for name in names):
            return reader
    return None


def _from_messages(record: Mapping[str, Any], where: str) -> Chat:
    tools = record.get("tools")
    if isinstance(tools, str):  # datasets of one column type keep them as JSON
        tools = _parsed(tools, f"{where}, tools")
    return Chat(_as_messages(record["messages"], where), tools or None)


def _from_sharegpt(record: Mapping[str, Any], where: str) -> Chat:
    turns = record["conversations"]
    if isinstance(turns, Sequence) and turns and isinstance(turns[0], Mapping) and "role" in turns[0]:
        messages = _as_messages(turns, where)
    else:
        messages = [_sharegpt_turn(turn, where) for turn in _list(turns, where)]
    return Chat([*_system(record), *messages])


def _sharegpt_turn(turn: Any, where: str) -> dict[str, Any]:
    role = _SHAREGPT_ROLES.get(str(turn.get("from")).lower()) if isinstance(turn, Mapping) else None
    if role is None:
        raise DataError(f"{where}, has a turn {_short(turn)}", f"from is one of {', '.join(_SHAREGPT_ROLES)}")
    return {"role": role, "content": turn.get("value")}


def _from_completion(record: Mapping[str, Any], where: str) -> Chat:
    question, answer = record["prompt"], record["completion"]
    return Chat([*_system(record), *_said("user", question, where), *_said("assistant", answer, where)])


def _from_alpaca(record: Mapping[str, Any], where: str) -> Chat:
    parts = [record["instruction"], record.get("input") or ""]
    if not all(isinstance(part, str) for part in parts):
        raise DataError(f"{where}, has an instruction or input that is no text: {_short(parts)}", "mend it")
    question = "\n\n".join(part for part in parts if part)
    return Chat(
        [*_system(record), *_said("user", question, where), *_said("assistant", record["output"], where)]
    )


def _from_pair(record: Mapping[str, Any], where: str) -> Chat:
    before = _said("user", record["prompt"], where) if record.get("prompt") else []
    chosen, rejected = (
        [*_system(record), *before, *_said("assistant", record[name], where)]
        for name in ("chosen", "rejected")
    )
    return Chat(chosen, rejected=rejected)


_READERS: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any], str], Chat]], ...] = (
    (("chosen", "rejected"), _from_pair),
    (("messages",), _from_messages),
    (("conversations",), _from_sharegpt),
    (("prompt", "completion"), _from_completion),
    (("instruction", "output"), _from_alpaca),
)


def _said(role: str, value: Any, where: str) -> Messages:
    """A text as one message of `role`, or messages as they are."""
    return [{"role": role, "content": value}] if isinstance(value, str) else _as_messages(value, where)


def _system(record: Mapping[str, Any]) -> Messages:
    system = record.get("system")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def _as_messages(values: Any, where: str) -> Messages:
    messages = []
    for value in _list(values, where):
        if not isinstance(value, Mapping):
            raise DataError(f"{where}, has a message {_short(value)}", "give role and content")
        messages.append({name: item for name, item in value.items() if item is not None})
    return messages


def _list(values: Any, where: str) -> list[Any]:
    if not isinstance(values, (list, tuple)) or not values:
        raise DataError(f"{where}, has messages {_short(values)}", "give a list of messages")
    return list(values)


def _check(messages: Messages, where: str) -> None:
    for message in messages:
        if message.get("role") not in ROLES:
            raise DataError(
                f"{where}, has a message of role {message.get('role')!r}", f"known are {', '.join(ROLES)}"
            )
        content = message.get("content")
        if not isinstance(content, (str, list)) and not message.get("tool_calls"):
            raise DataError(f"{where}, has a message without content: {_short(message)}", "give it some")
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError(f"{where}, has no assistant turn", "there is nothing to learn from it")
    if not any(message.get("content") or message.get("tool_calls") for message in messages):
        raise DataError(f"{where}, has only empty messages", "there is nothing to learn from it")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON: {error}", "mend it") from error


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."
