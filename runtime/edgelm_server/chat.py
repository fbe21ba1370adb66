"""POST /v1/chat/completions: the assistant's next message."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from edgelm_runtime.generation.results import Piece
from edgelm_server.answers import FINISH_REASONS, Envelope, usage
from edgelm_server.chat_request import Chat, read_chat
from edgelm_server.logprobs import Scored, ShownTokens, chat_logprobs
from edgelm_server.replies import Event, EventStream, json_reply
from edgelm_server.service import Service, service_of
from edgelm_server.texts import Texts
from edgelm_server.tools import Call, Tools, may_begin_call, split_calls


async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    fields = await service.read(request)
    asked = await run_sync(read_chat, fields, service)
    texts = Texts(service.engine, asked.jobs, service.metrics)
    if not asked.stream:
        return await json_reply(request, lambda: _whole(service, asked, texts))
    try:
        await texts.start()
    except BaseException:
        texts.cancel()
        raise
    return EventStream(_chunks(service, asked, texts), service.settings.max_time)


@dataclass
class Message:
    """One answer in the making. Text that may be a call of a tool is held back until it is decided."""

    tools: Tools
    made: ShownTokens
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[Scored] = field(default_factory=list)
    finish_reason: str | None = None
    _shown: int = 0

    def add(self, piece: Piece) -> tuple[str, list[Scored]]:
        """Take in a piece; gives the text that is certain to be content by now, and its tokens."""
        self.text += piece.text
        self.made.add(piece)
        if piece.finish_reason is not None:
            self._finish(piece)
            end = len(self.text)
        elif self.tools.forced:
            end = 0
        else:
            end = may_begin_call(self.text) if self.tools.active else len(self.text)
        shown, self._shown = self._shown, max(self._shown, end)
        tokens = self.made.until(self._shown, piece.finish_reason is not None)
        self.tokens += tokens
        return self.text[shown : self._shown], tokens

    def _finish(self, piece: Piece) -> None:
        self.finish_reason = FINISH_REASONS[piece.finish_reason]
        if self.tools.active:
            self.text, self.calls = split_calls(self.text, self.tools)
            # A call that was cut short is no JSON, and stays text.
            if self.calls and self.finish_reason == "stop":
                self.finish_reason = "tool_calls"


async def _whole(service: Service, asked: Chat, texts: Texts) -> Event:
    envelope = Envelope(service, "chatcmpl", "chat.completion")
    messages = _messages(service, asked)
    made = 0
    try:
        await texts.start()
        async for index, piece in texts.pieces():
            messages[index].add(piece)
            made += piece.token_id is not None
    finally:
        texts.cancel()
    service.note_text(*(message.text for message in messages))
    return envelope(
        [_choice(service, asked, index, message) for index, message in enumerate(messages)],
        usage=usage(asked.jobs, len(asked.jobs), made),
    )


def _messages(service: Service, asked: Chat) -> list[Message]:
    return [Message(asked.tools, ShownTokens(service.lm.tokenizer, job)) for job in asked.jobs]


def _choice(service: Service, asked: Chat, index: int, message: Message) -> dict[str, Any]:
    content: dict[str, Any] = {"role": "assistant", "content": message.text, "refusal": None}
    if message.calls:
        content["content"] = message.text or None
        content["tool_calls"] = [call.message() for call in message.calls]
    return {
        "index": index,
        "message": content,
        "logprobs": chat_logprobs(service.lm.tokenizer, message.tokens) if asked.logprobs else None,
        "finish_reason": message.finish_reason,
    }


async def _chunks(service: Service, asked: Chat, texts: Texts) -> AsyncGenerator[Event, None]:
    envelope = Envelope(service, "chatcmpl", "chat.completion.chunk")
    extra = {"usage": None} if asked.include_usage else {}
    messages = _messages(service, asked)
    made = 0
    try:
        for index in range(len(messages)):
            yield envelope([_chunk(index, {"role": "assistant", "content": ""})], **extra)
        async for index, piece in texts.pieces():
            message = messages[index]
            made += piece.token_id is not None
            for choice in _piece_chunks(service, asked, index, message, piece):
                yield envelope([choice], **extra)
        service.note_text(*(message.text for message in messages))
        if asked.include_usage:
            yield envelope([], usage=usage(asked.jobs, len(asked.jobs), made))
    finally:
        texts.cancel()


def _piece_chunks(
    service: Service, asked: Chat, index: int, message: Message, piece: Piece
) -> Iterator[dict[str, Any]]:
    """What a piece adds: text, the calls that it completes, and the end by itself."""
    text, tokens = message.add(piece)
    if text or tokens:
        logprobs = chat_logprobs(service.lm.tokenizer, tokens) if asked.logprobs else None
        yield _chunk(index, {"content": text}, logprobs)
    for place, call in enumerate(message.calls):
        yield _chunk(index, {"tool_calls": [call.message(place)]})
    if message.finish_reason:
        yield _chunk(index, {}, finish_reason=message.finish_reason)


def _chunk(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
