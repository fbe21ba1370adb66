"""POST /v1/embeddings: vectors for texts."""

from __future__ import annotations

import base64
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from edgelm_server.completions import list_prompts
from edgelm_server.errors import ApiError
from edgelm_server.fields import Fields
from edgelm_server.replies import Event, json_reply
from edgelm_server.service import Service, service_of

MOST_INPUTS = 2048


async def embeddings(request: Request) -> Response:
    service = service_of(request)
    fields = await service.read(request)
    return await json_reply(request, lambda: _embeddings(service, fields))


async def _embeddings(service: Service, fields: Fields) -> Event:
    inputs = list_prompts(fields, "input")
    form = fields.text("encoding_format") or "float"
    width = fields.whole("dimensions", 1, 1 << 20)
    fields.finish()
    if form not in ("float", "base64"):
        raise fields.wrong("encoding_format", form, "give float or base64")
    if len(inputs) > MOST_INPUTS:
        raise ApiError(
            400, f"input has {len(inputs)} texts; send at most {MOST_INPUTS} at once", param="input"
        )
    count = await run_sync(_count, service, inputs)
    vectors = await service.aside(service.lm.embed, inputs)
    if width is not None and width != vectors.shape[1]:
        raise fields.wrong("dimensions", width, f"the model's vectors have {vectors.shape[1]}")
    return {
        "object": "list",
        "model": service.settings.names[0],
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": vector.tolist()
                if form == "float"
                else base64.b64encode(vector.astype("<f4").tobytes()).decode(),
            }
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def _count(service: Service, inputs: list[Any]) -> int:
    """Tokens of all inputs. Raises ApiError for one that the context does not hold, so that none is cut silently."""
    info = service.lm.info
    total = 0
    for index, text in enumerate(inputs):
        length = len(service.lm.encode_prompt(text))
        if isinstance(text, str):
            length += info.final_id is not None
        if length > info.context_length:
            raise ApiError(
                400,
                f"input {index} has {length} tokens and the context {info.context_length}; send a shorter one",
                param="input",
                code="context_length_exceeded",
            )
        total += length
    return total
