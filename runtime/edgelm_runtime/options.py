"""The keyword options of generation, for type checkers and editors.

The values are checked, and described, where they are used: `Sampling`, `Limits` and `make_constraint`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

from edgelm_runtime.row import Overflow, Piece
from edgelm_runtime.sampler import Processor


class Options(TypedDict, total=False):
    """What `LanguageModel.generate`, `stream`, `chat` and `stream_chat` take by name."""

    max_new_tokens: int
    max_time: float | None
    stop: Sequence[str]
    overflow: Overflow
    lookup: int | Literal["auto"]
    reference: Sequence[int] | str
    logprobs: int | None
    cancel: threading.Event | None
    on_token: Callable[[Piece], None] | None

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_penalty: float
    repeat_last_n: int
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    banned_tokens: Sequence[int]
    forced_tokens: Sequence[int]
    seed: int | None
    processor: Processor | None

    allowed_special: Collection[str] | str
    """Special tokens whose text in the prompt stands for them, or "all"."""
    choices: Sequence[str] | None
    regex: str | None
    json_schema: Mapping[str, Any] | str | None
