"""What a request must pass before an endpoint sees it: Host, Origin, key. And what is noted of it.

A web page can make its visitor's browser ask a server on loopback. Two checks keep it out: a page of another
origin is refused unless CORS allows it, and a name that was rebound to this machine's address shows in the Host
header. Addresses are always good there, since to rebind takes a name.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import logging
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgelm_server.errors import ApiError
from edgelm_server.metrics import Metrics

log = logging.getLogger("edgelm.server")

OPEN_PATHS = ("/health",)


class Guard:
    """Refuses requests for another host, from another origin, or without the key."""

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], origins: Collection[str], api_key: str | None
    ) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._origins = origins
        self._key = api_key.encode() if api_key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            self._check(scope["path"], scope["method"], Headers(scope=scope))
        except ApiError as error:
            return await error.response(scope, receive, send)
        return await self._app(scope, receive, send)

    def _check(self, path: str, method: str, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _part(f"//{host}", "hostname")
        if not (name in self._hosts or "*" in self._hosts or _is_address(name)):
            raise ApiError(
                403, f"the host {name!r} is not served; start the server with --allowed-host {name}"
            )
        if origin is not None and not (
            origin in self._origins or "*" in self._origins or _part(origin, "netloc").lower() == host.lower()
        ):
            raise ApiError(
                403, f"pages of {origin} may not ask; start the server with --cors-origin {origin}"
            )
        preflight = method == "OPTIONS" and "access-control-request-method" in headers
        if self._key is not None and path not in OPEN_PATHS and not preflight:
            self._check_key(headers.get("authorization", ""))

    def _check_key(self, authorization: str) -> None:
        """As `Bearer KEY`, or as the password of `Basic`, which browsers ask for by themselves."""
        kind, _, given = authorization.partition(" ")
        secret = given.strip().encode("latin-1")  # as HTTP's headers are read
        if kind.lower() == "basic":
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except binascii.Error:
                secret = b""
        if kind.lower() not in ("bearer", "basic") or not hmac.compare_digest(secret, self._key or b""):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _part(url: str, name: str) -> str:
    """A part of `url`; empty where there is none, or where it is no URL."""
    try:
        return getattr(urlsplit(url), name) or ""
    except ValueError:
        return ""


class Observer:
    """Counts each request, and logs method, path, status and seconds; nothing of what is in it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started, status = time.monotonic(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            seconds = time.monotonic() - started
            # Any path can be asked for; only those that exist become labels.
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.add(1, path, str(status))
            self._metrics.request_seconds.observe(seconds)
            log.info("%s %s %d %.3f s", scope["method"], scope["path"], status, seconds)
