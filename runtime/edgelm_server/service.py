"""What all endpoints share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request

from edgelm_runtime.errors import QueueFullError
from edgelm_runtime.language_model import LanguageModel
from edgelm_runtime.serving.engine import Engine
from edgelm_server.errors import GONE, ApiError
from edgelm_server.fields import Fields, read_fields
from edgelm_server.metrics import Metrics
from edgelm_server.settings import Settings

BODY_SECONDS = 30

log = logging.getLogger("edgelm.server")

T = TypeVar("T")


class Service:
    """A model, its engine and the settings; one per application."""

    def __init__(self, lm: LanguageModel, engine: Engine, settings: Settings) -> None:
        self.lm = lm
        self.engine = engine
        self.settings = settings
        self.metrics = Metrics()
        self.started = int(time.time())
        self.fingerprint = f"fp_{str(lm.info.origin.get('weights_sha256', '0'))[:12]}"
        self._aside = anyio.CapacityLimiter(1)

    async def read(self, request: Request) -> Fields:
        """The fields of a request, once its `model` has been looked at."""
        try:
            with anyio.fail_after(BODY_SECONDS):
                fields = await read_fields(request, self.settings.max_body)
        except ClientDisconnect as error:
            raise ApiError(GONE, "the request was broken off") from error
        except TimeoutError as error:
            raise ApiError(408, f"the body did not arrive within {BODY_SECONDS} seconds") from error
        if self.settings.log_prompts:
            log.info("%s %s", request.url.path, fields)
        self.check_model(fields.text("model"))
        return fields

    def check_model(self, name: str | None) -> None:
        """Raise ApiError for a model that is not here; a request that names none means the only one."""
        names = self.settings.names
        if name is not None and name not in names:
            known = ", ".join(map(repr, names))
            raise ApiError(
                404, f"there is no model {name!r}; this server has {known}", code="model_not_found"
            )

    def note_text(self, *texts: str) -> None:
        """Log answers, where that is wanted."""
        if self.settings.log_prompts:
            for text in texts:
                log.info("answer %r", text)

    async def aside(self, work: Callable[..., T], *arguments: object, **options: object) -> T:
        """Run `work` in a thread, next to the engine; one at a time, since each uses all cores.

        Raises QueueFullError where too many wait already.
        """
        if self._aside.statistics().tasks_waiting > self.engine.status().queue:
            raise QueueFullError("too many requests wait to be scored or embedded", "try again later")
        return await run_sync(partial(work, *arguments, **options), limiter=self._aside)


def service_of(request: Request) -> Service:
    """The service of the application that got `request`."""
    service: Service = request.app.state.service
    return service
