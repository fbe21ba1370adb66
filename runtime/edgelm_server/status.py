"""GET /v1/models, /health and /metrics: what the server has, and how it is."""

from __future__ import annotations

from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from edgelm_server.service import Service, service_of

HEALTH_SECONDS = 5.0


async def models(request: Request) -> Response:
    """All names of the one model."""
    service = service_of(request)
    data = [_model(service, name) for name in service.settings.names]
    return JSONResponse({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """One of them."""
    service = service_of(request)
    name: str = request.path_params["name"]
    service.check_model(name)
    return JSONResponse(_model(service, name))


def _model(service: Service, name: str) -> dict[str, Any]:
    context = service.lm.info.context_length
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "edgelm",
        "context_length": context,
        "max_model_len": context,
    }


async def health(request: Request) -> Response:
    """Whether the engine's thread answers: a server whose engine hangs is not healthy."""
    if await run_sync(service_of(request).engine.ping, HEALTH_SECONDS):
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "the engine does not answer"}, 503)


async def metrics(request: Request) -> Response:
    service = service_of(request)
    now = service.engine.status()
    figures = {
        "edgelm_prompt_tokens_total": ("Tokens of prompts.", now.prompt_tokens),
        "edgelm_reused_tokens_total": ("Of those, tokens that had been computed before.", now.reused_tokens),
        "edgelm_generated_tokens_total": ("Tokens made by finished requests.", now.tokens),
        "edgelm_steps_total": ("Passes of the model.", now.steps),
        "edgelm_slots": ("Texts that advance together at most.", now.parallel),
        "edgelm_texts_active": ("Texts that advance now.", now.active),
        "edgelm_texts_queued": ("Texts that wait for a slot.", now.queued),
        "edgelm_queue_limit": ("Texts that may wait.", now.queue),
        "edgelm_texts_refused_total": ("Texts refused by a full queue.", now.refused),
        "edgelm_cache_tokens": ("Tokens whose states the cache holds.", now.cache_tokens),
        "edgelm_cache_bytes": ("Bytes of the cache.", now.cache_bytes),
        "edgelm_cache_bytes_limit": ("Bytes that the cache may grow to.", now.cache_bytes_limit),
    }
    return PlainTextResponse(service.metrics.text(figures), media_type="text/plain; version=0.0.4")
