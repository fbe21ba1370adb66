"""Errors in the form that clients of OpenAI's interface know: {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
import re
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from edgelm_runtime.errors import (
    ClosedError,
    EdgelmError,
    MissingExtraError,
    ModelFileError,
    OptionError,
    QueueFullError,
)

log = logging.getLogger("edgelm.server")

GONE = 499  # as nginx notes it: the caller closed the connection
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An answer with an HTTP status of 400 or more. `param` names the field that is wrong."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {
            "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code},
        }

    @property
    def response(self) -> JSONResponse:
        headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": 'Basic realm="edgelm"'}}
        return JSONResponse(self.body, self.status, headers.get(self.status))


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of `error`; what nobody foresaw is logged, and told without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, error.detail or HTTPStatus(error.status_code).phrase)
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full")
    if isinstance(error, ClosedError):
        return ApiError(503, "the server is shutting down", code="shutting_down")
    if isinstance(error, OptionError):
        return ApiError(400, str(error), param=_named(error))
    if isinstance(error, (MissingExtraError, ModelFileError)):
        return ApiError(400, str(error), code="unsupported")
    if isinstance(error, EdgelmError):
        log.error("%s", error)
        return ApiError(500, str(error))
    log.error("internal error", exc_info=error)
    return ApiError(500, "internal error")


async def respond(request: Request, error: Exception) -> JSONResponse:
    """Starlette's exception handler."""
    return as_api_error(error).response


def _named(error: OptionError) -> str | None:
    """The option that the runtime's message begins with: "top_p is 2; give ..."."""
    match = re.match(r"(\w+) is ", error.problem)
    return match[1] if match else None
