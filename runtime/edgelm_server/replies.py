"""Answers that end when their caller goes: JSON as a whole, or server-sent events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from edgelm_server.errors import GONE, as_api_error

Event = dict[str, Any]
READ_SECONDS = 60  # that a reader may be behind when the text is finished


async def json_reply(request: Request, make: Callable[[], Awaitable[Event]]) -> Response:
    """What `make` gives, unless the caller goes before it is done: then `make` is cancelled."""
    values: Event | None = None
    error: Exception | None = None
    async with _while_connected(request.receive):
        try:
            values = await make()
        except Exception as raised:  # a task group would wrap it
            error = raised
    if error is not None:
        raise error
    return JSONResponse(values) if values is not None else Response(status_code=GONE)


class EventStream(Response):
    """Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) of JSON objects, and
    `[DONE]` after the last. An error under way becomes the last event instead.

    `events` is closed at the end, whatever ends it; a reader that is too slow is dropped after `seconds`.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[Event, None], seconds: float) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._events), _while_connected(receive, self._seconds + READ_SECONDS):
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            try:
                async for event in self._events:
                    await send(_body(json.dumps(event, ensure_ascii=False, separators=(",", ":"))))
                await send(_body("[DONE]"))
            except OSError:
                return  # the connection broke while something was written
            except Exception as error:
                await send(_body(json.dumps(as_api_error(error).body)))
            await send({"type": "http.response.body", "body": b""})


def _body(data: str) -> Message:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}


@contextlib.asynccontextmanager
async def _while_connected(receive: Receive, seconds: float | None = None) -> Any:
    """Cancels its block when the caller goes, or after `seconds`. The request's body must have been read."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            with anyio.move_on_after(seconds):
                while (await receive())["type"] != "http.disconnect":
                    pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        yield
        group.cancel_scope.cancel()
