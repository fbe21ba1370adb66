"""What the answers of completions and chats have in common."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from edgelm_server.replies import Event
from edgelm_server.service import Service
from edgelm_server.texts import Job

# The runtime's reasons in OpenAI's words.
FINISH_REASONS: Mapping[str | None, str] = {
    "end": "stop", "stop": "stop", "length": "length", "context": "length", "time": "length",
}  # fmt: skip


class Envelope:
    """What stands around the choices: the same in each chunk of an answer."""

    def __init__(self, service: Service, prefix: str, kind: str) -> None:
        self._values = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": service.settings.names[0],
            "system_fingerprint": service.fingerprint,
        }

    def __call__(self, choices: list[dict[str, Any]], **more: Any) -> Event:
        return {**self._values, "choices": choices, **more}


def usage(jobs: Sequence[Job], samples: int, made: int) -> dict[str, int]:
    """Tokens of the prompts, each counted once however many texts it gets, and of what was made."""
    prompt = sum(len(job.prompt) for job in jobs[::samples])
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
