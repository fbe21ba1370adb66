"""The keyword options of generation, for type checkers and editors.

Written by tests/regenerate.py from the declarations in options.py: change them there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

from edgelm_runtime.generation.options import Overflow, Processor
from edgelm_runtime.generation.results import Piece


class Options(TypedDict, total=False):
    """What `LanguageModel.generate`, `stream`, `chat` and `stream_chat` take by name."""

    temperature: float
    """Randomness of the choice; 0 always takes the most likely token (greedy)."""
    top_k: int
    """Keep only the k most likely tokens; 0 keeps all."""
    top_p: float
    """Keep the most likely tokens that together reach this probability."""
    min_p: float
    """Keep only tokens at least this fraction as likely as the most likely one."""
    typical_p: float
    """Locally typical sampling: keep the tokens whose surprise is closest to the expected one, up to
    this probability."""
    repeat_penalty: float
    """Values above 1 make tokens of the last `repeat_last_n` less likely (divides positive logits,
    multiplies negative ones)."""
    repeat_last_n: int
    """Number of recent tokens, prompt included, that the penalties consider; -1 considers all."""
    frequency_penalty: float
    """Subtracted from a token's logit for each time it has occurred."""
    presence_penalty: float
    """Subtracted from the logit of every token that has occurred."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these token ids; `-inf` forbids one."""
    banned_tokens: Sequence[int]
    """Token ids that are never generated."""
    forced_tokens: Sequence[int]
    """Token ids that the output starts with."""
    seed: int | None
    """Random seed. The same seed gives the same text: alone, in a batch, streamed, with or without
    prompt lookup or a KV cache."""
    processor: Processor | None
    """A function `(ids, logits) -> logits` of your own, called before everything else."""
    max_new_tokens: int
    """Maximum number of new tokens."""
    max_time: float | None
    """Seconds after which no further token is computed."""
    stop: Sequence[str]
    """Stop before any of these texts."""
    keep_special: bool
    """Show special tokens in the text, such as those around a model's thinking."""
    overflow: Overflow
    """When the context is full: slide (see only the most recent tokens), stop, or raise an error at the
    start."""
    lookup: int | Literal["auto"]
    """Prompt lookup: number of tokens to draft from earlier text, or as many as pay off; 0 turns it off.
    Changes speed, never text."""
    reference: Sequence[int] | str
    """A text (or token ids) that prompt lookup may draft from as well."""
    logprobs: int | None
    """Return log-probabilities, with this many alternatives per token."""
    cancel: threading.Event | None
    """Set this event, from any thread, to end generation after the current pass."""
    on_token: Callable[[Piece], None] | None
    """A function that is called with each piece."""
    allowed_special: Collection[str] | str
    """Special tokens that may be spelled out in the prompt; `"all"` allows every one."""
    choices: Sequence[str] | None
    """Generate exactly one of these texts (`pip install 'edgelm[constrain]'`)."""
    regex: str | None
    """Generate only text that matches this regular expression (extra `constrain`)."""
    json_schema: Mapping[str, Any] | str | bool | None
    """Generate only JSON that is valid under this schema (extra `constrain`)."""
