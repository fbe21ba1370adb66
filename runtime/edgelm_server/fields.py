"""The fields of a request's JSON body.

Each endpoint takes the fields that it knows. What is left over is dropped where it cannot change the answer, and
refused by name otherwise: a field that is silently ignored gives an answer to another question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from edgelm_server.errors import ApiError

# They say who asks, or how the service is billed and cached, and leave the answer alone.
HARMLESS = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options", "cache_prompt",
})  # fmt: skip

# Fields of OpenAI's that this server does not have, and what to do instead.
REMEDIES = {
    "suffix": "the model only continues texts; put everything before the gap into the prompt",
    "best_of": "ask for n texts and choose among them",
    "functions": "give tools",
    "function_call": "give tool_choice",
    "audio": "only text is made",
    "modalities": "only text is made",
    "web_search_options": "nothing is looked up",
    "verbosity": "say it in the prompt",
}


T = TypeVar("T")


class Fields:
    """Fields to take one by one; null counts as not given. `prefix` leads to them in messages."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._prefix = prefix

    def __repr__(self) -> str:
        return json.dumps(self._values, ensure_ascii=False)

    def take(self, name: str, default: Any = None) -> Any:
        """The value of any type."""
        return self._values.pop(name, default)

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "give a text")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._typed(name, bool, "give true or false")
        return default if value is None else value

    def mapping(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, dict, "give an object")

    def list(self, name: str) -> list[Any] | None:
        return self._typed(name, list, "give a list")

    def whole(self, name: str, low: int, high: int) -> int | None:
        remedy = f"give a whole number from {low} to {high}"
        value = self._typed(name, int, remedy)
        if value is not None and (isinstance(value, bool) or not low <= value <= high):
            raise self.wrong(name, value, remedy)
        return value

    def _typed(self, name: str, kind: type[T], remedy: str) -> T | None:
        value = self._values.pop(name, None)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(name, value, remedy)
        return value

    def wrong(self, name: str, value: object, remedy: str) -> ApiError:
        """The error of a field whose value cannot be used."""
        shown = json.dumps(value, ensure_ascii=False)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return ApiError(400, f"{self._prefix}{name} is {shown}; {remedy}", param=f"{self._prefix}{name}")

    def refuse(self, name: str, *, unless: tuple[Any, ...] = ()) -> None:
        """Refuse a field that is known and not supported, except for values that ask for nothing."""
        value = self._values.pop(name, None)
        if value is not None and value not in unless:
            raise self._unsupported(name)

    def finish(self) -> None:
        """Refuse what nobody took."""
        for name in self._values.keys() - HARMLESS:
            raise self._unsupported(name)

    def _unsupported(self, name: str) -> ApiError:
        remedy = REMEDIES.get(name, "leave it out")
        return ApiError(
            400,
            f"{self._prefix}{name} is not supported; {remedy}",
            param=f"{self._prefix}{name}",
            code="unsupported_parameter",
        )


async def read_fields(request: Request, max_body: int) -> Fields:
    """The fields of the request's body. Raises ApiError for a body that is too large or no JSON object."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_body:
            raise ApiError(413, f"the body is larger than {max_body} bytes; send less at once")
    try:
        values = json.loads(body.decode(), parse_int=_whole, parse_constant=_refused)
        if b"\\u" in body:
            json.dumps(values, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ApiError(400, "the body is not a JSON object; send one")
    return Fields(values)


def _whole(digits: str) -> int:
    value = int(digits)
    if abs(value) >= 1 << 64:
        raise ValueError(f"{digits[:20]}... is out of range")
    return value


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON's")
