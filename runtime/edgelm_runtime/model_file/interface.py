"""The names that model files and their readers agree on: graph inputs and outputs, and metadata keys.

No other module spells one of them. runtime/README.md ("The model file") says what each means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class TensorInfo(NamedTuple):
    """Name, onnxruntime type such as `tensor(float)`, and shape of an input or output; names for free axes."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


class LoadedGraph(Protocol):
    """What reading a model file needs of a loaded graph; the engine's `Session` is one."""

    @property
    def inputs(self) -> Mapping[str, TensorInfo]:
        """Those with a default value included, by name."""

    @property
    def outputs(self) -> Mapping[str, TensorInfo]:
        """By name."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The file's `metadata_props`."""


# Graph inputs and outputs.
INPUT_IDS = "input_ids"
LOGITS_AT = "logits_at"
LOGITS = "logits"
CACHE_LENGTH = "cache_length"
EMBEDDINGS, HIDDEN = "embeddings", "hidden"
EXTRA_OUTPUTS = (EMBEDDINGS, HIDDEN)
ATTENTION_MASK, POSITION_IDS = "attention_mask", "position_ids"  # only models from elsewhere have these
PAST, PRESENT = "past_key_values.", "present."
CAPACITY = "capacity"
"""Name of the cache's axis in graphs that write new tokens into it, and so want room for them, also without a past."""


def past_names(inputs: Iterable[str]) -> list[str]:
    """Those of a graph's inputs that are keys or values of earlier tokens."""
    return [name for name in inputs if name.startswith(PAST)]


def present_name(past: str) -> str:
    """The output that gives back the input `past` with the new tokens added."""
    return PRESENT + past.removeprefix(PAST)


def past_name(present: str) -> str:
    """The input that takes what the output `present` gave."""
    return PAST + present.removeprefix(PRESENT)


# Metadata: the key of each entry without the prefix that all of them have.
FORMAT = 1
"""The version of the format, which the entry `format` holds."""
PREFIX = "edgelm."
FORMAT_ENTRY, CONFIG, TOKENIZER, GENERATION, ORIGIN = "format", "config", "tokenizer", "generation", "origin"
GRAPH, PARITY, QUALITY, GOLDEN, DIGEST = "graph", "parity", "quality", "golden", "digest"

# Fields of `config` that the runtime reads.
CONTEXT_LENGTH, VOCAB_SIZE = "context_length", "vocab_size"
# Fields of `graph` that the runtime reads: spare positions of a cache, and what binds a sidecar to its graph.
CACHE_SPARE, SIDECAR, SIDECAR_SAMPLE = "cache_spare", "sidecar", "sidecar_sample"
# Fields of `generation` besides the defaults of options.
END_IDS, BOS_ID, ADD_BOS, EOS_ID, ADD_EOS, CHAT_TEMPLATE = (
    "end_ids", "bos_id", "add_bos", "eos_id", "add_eos", "chat_template",
)  # fmt: skip
