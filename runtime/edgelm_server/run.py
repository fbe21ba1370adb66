"""Running the application with uvicorn, from the bound socket to the graceful end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from edgelm_runtime.errors import OptionError
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.serving.engine import Engine
from edgelm_server.app import create_app
from edgelm_server.settings import Settings

CONNECTIONS = 512
GRACE_SECONDS = 5  # for the last words of cancelled streams


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OptionError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"cannot listen on {host} port {port}: {reason}", "choose another --port"
        ) from error


def serve(
    lm: LanguageModel,
    engine: Engine,
    listener: socket.socket,
    settings: Settings | None = None,
    *,
    drain: float = 30.0,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests on `listener` until SIGINT or SIGTERM.

    Then no request is taken any more, those under way may go on for `drain` seconds, and the rest is cancelled.
    A second signal ends at once. `ready` is called when requests are answered. Closes the engine.
    """
    config = configured(create_app(lm, engine, settings), drain)
    _Server(config, engine, drain, ready).run(sockets=[listener])


def configured(app: Starlette, drain: float = 0.0) -> uvicorn.Config:
    """How uvicorn runs `app`: the same protocol implementations and no log of its own, whatever is installed."""
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(drain) + GRACE_SECONDS,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, that ends the engine along with itself."""

    def __init__(
        self, config: uvicorn.Config, engine: Engine, drain: float, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._engine = engine
        self._drain = drain
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Without uvicorn's raising the signal again at the end: to stop when told is a success."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        draining = loop.run_in_executor(None, self._engine.close, self._drain)
        await super().shutdown(sockets)
        self._engine.close()
        await draining
