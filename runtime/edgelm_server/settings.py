"""What whoever starts the server decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The defaults are the safe ones."""

    names: tuple[str, ...] = ("model",)
    """What the model is called in requests; answers carry the first."""
    api_key: str | None = None
    """Asked for everywhere but at /health."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the Host header may have, besides addresses and `localhost`."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server from a browser; "*" means any."""
    max_body: int = 4 << 20
    """Bytes that a request's body may have."""
    max_time: float = 600.0
    """Seconds after which an answer ends where it is."""
    log_prompts: bool = False
