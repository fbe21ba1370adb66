"""Lines of OpenAI's batch files, answered by the server's own endpoints without a network in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from edgelm_runtime.errors import OptionError
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.serving.engine import Engine
from edgelm_server.app import create_app
from edgelm_server.options import SAME
from edgelm_server.settings import Settings

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


def batch_app(lm: LanguageModel, engine: Engine) -> Any:
    """An application for `answer_batch_line`. A batch waits as long as it takes."""
    return create_app(lm, engine, Settings(max_body=1 << 30, max_time=1e9))


def answer_batch_line(app: Any, line: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenAI's batches say about a line: its `response`, or an `error`.

    `defaults` are options of generation that the body does not name. Raises OptionError for a line that is none.
    See https://platform.openai.com/docs/api-reference/batch/request-input.
    """
    url, body = line.get("url"), line["body"]
    if url not in URLS or line.get("method", "POST") != "POST":
        raise OptionError(
            f"the line asks for {line.get('method', 'POST')} {url}", f"known are {', '.join(URLS)}"
        )
    if not isinstance(body, dict):
        raise OptionError("the body of the line is no JSON object", "see OpenAI's batch files")
    # A batch runs against the one model that was given, whatever its lines call it; its answers come whole.
    body = {name: value for name, value in body.items() if name not in ("model", "stream")}
    if not url.endswith("embeddings"):
        body = {**_fields(defaults, body), **body}
    status, reply = asyncio.run(_post(app, str(url), json.dumps(body).encode()))
    response = {"status_code": status, "request_id": reply.get("id", ""), "body": reply}
    return {"response": response, "error": reply.get("error") if status >= 400 else None}


def _fields(options: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime's options by the names that a body has for them. Raises OptionError for one that it cannot have."""
    fields = dict(options)
    if (limit := fields.pop("max_new_tokens", None)) is not None and "max_completion_tokens" not in body:
        fields["max_tokens"] = limit
    for name in fields:
        if name not in (*SAME, "seed", "stop", "max_tokens"):
            raise OptionError(f"the option {name} has no field in OpenAI's requests", "leave it out")
    return fields


async def _post(app: Any, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 0), "server": ("localhost", 80),
    }  # fmt: skip
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # nobody goes away here
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(content)
