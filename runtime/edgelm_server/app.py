"""The ASGI application: which path leads where, and what stands before all of them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from edgelm_runtime.errors import EdgelmError
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.serving.engine import Engine
from edgelm_server import status
from edgelm_server.chat import chat_completions
from edgelm_server.chat_page import chat_page
from edgelm_server.completions import completions
from edgelm_server.embeddings import embeddings
from edgelm_server.errors import ApiError, respond
from edgelm_server.guards import Guard, Observer
from edgelm_server.service import Service
from edgelm_server.settings import Settings
from edgelm_server.tokenization import detokenize, tokenize, tokenizer_info

ROUTES = [
    Route("/", chat_page),
    Route("/health", status.health),
    Route("/metrics", status.metrics),
    Route("/v1/models", status.models),
    Route("/v1/models/{name:path}", status.model),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/tokenizer_info", tokenizer_info),
]


def create_app(lm: LanguageModel, engine: Engine, settings: Settings | None = None) -> Starlette:
    """An application that serves `lm` through its `engine`; both stay the caller's to close."""
    settings = settings or Settings()
    service = Service(lm, engine, settings)
    guards = [
        Middleware(Observer, metrics=service.metrics, paths={route.path for route in ROUTES}),
        Middleware(
            Guard,
            hosts=settings.allowed_hosts,
            origins=settings.cors_origins,
            api_key=settings.api_key,
        ),
    ]
    if settings.cors_origins:
        # Inside the guard, which lets the preflight through; it answers it and marks what the page may read.
        guards.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        )
    handlers = dict.fromkeys((ApiError, EdgelmError, HTTPException, Exception), respond)
    app = Starlette(routes=ROUTES, middleware=guards, exception_handlers=handlers)
    app.state.service = service
    return app
