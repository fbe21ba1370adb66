"""What a model file says about itself, read from the graph's metadata and held against the graph.

Format 1 is described in runtime/README.md. Metadata values are JSON under `edgelm.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgelm_runtime.errors import ModelFileError, TokenizerError
from edgelm_runtime.model_file.digest import changed_entries
from edgelm_runtime.model_file.fields import EXPORT_AGAIN, EntryReader
from edgelm_runtime.model_file.interface import (
    ADD_BOS,
    ADD_EOS,
    BOS_ID,
    CACHE_SPARE,
    CHAT_TEMPLATE,
    CONFIG,
    CONTEXT_LENGTH,
    DIGEST,
    END_IDS,
    EOS_ID,
    FORMAT,
    FORMAT_ENTRY,
    GENERATION,
    GOLDEN,
    GRAPH,
    INPUT_IDS,
    LOGITS,
    LOGITS_AT,
    ORIGIN,
    PARITY,
    PREFIX,
    QUALITY,
    TOKENIZER,
    VOCAB_SIZE,
    LoadedGraph,
)
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.validation import shown


@dataclass(frozen=True)
class ModelFile:
    """The metadata of a model file; `config` and the other mappings are plain JSON values."""

    config: Mapping[str, Any]
    tokenizer: Tokenizer | None
    generation: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)
    golden: Mapping[str, Any] = field(default_factory=dict)
    graph: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)
    digest: Mapping[str, str] = field(default_factory=dict)

    @property
    def context_length(self) -> int:
        """Maximum number of tokens that the model sees."""
        return int(self.config[CONTEXT_LENGTH])

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and width of the logits."""
        return int(self.config[VOCAB_SIZE])

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return tuple(self.generation.get(END_IDS, ()))

    @property
    def bos_id(self) -> int | None:
        """The begin token, where the model has one."""
        return self.generation.get(BOS_ID)

    @property
    def begin_id(self) -> int | None:
        """The token that every text begins with; None where texts begin as they are."""
        return self.bos_id if self.generation.get(ADD_BOS) else None

    @property
    def final_id(self) -> int | None:
        """The token that the model's tokenizer puts after every whole text; None where texts end as they are."""
        return self.generation.get(EOS_ID) if self.generation.get(ADD_EOS) else None

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja)."""
        return self.generation.get(CHAT_TEMPLATE)

    @property
    def dtype(self) -> str | None:
        """Precision of the weights: fp32, fp16, int8 or int4; None where the file does not say."""
        return self.graph.get("dtype")

    @property
    def golden_prompts(self) -> list[dict[str, Any]]:
        """Prompts (`ids`, and `text` where there is a tokenizer) with the answers that `verify` replays."""
        return list(self.golden.get("prompts", ()))


def is_model_file(metadata: Mapping[str, str]) -> bool:
    """Whether `metadata` are those of an edgelm model file, of any version."""
    return PREFIX + FORMAT_ENTRY in metadata


def read_model_file(graph: LoadedGraph, name: str, check_digest: bool = True) -> ModelFile:
    """The metadata of a loaded graph. `name` stands for the file in messages.

    `check_digest`: whether metadata must be what the file's own digest says; weights are not looked at, which is
    what `verify` is for. Raises ModelFileError where it is not an edgelm file, is of a newer format, is incomplete
    or was changed, or says something that the graph contradicts.
    """
    metadata = graph.metadata
    if not is_model_file(metadata):
        raise ModelFileError(
            f"{name} is an ONNX model without edgelm's metadata",
            "give --tokenizer and --context-length to run a model from elsewhere",
        )
    reader = EntryReader(metadata, name)
    version = reader.value(FORMAT_ENTRY)
    if version != FORMAT or isinstance(version, bool):
        raise ModelFileError(
            f"{name} has format {shown(version)}, and this edgelm reads format {FORMAT}", "update edgelm"
        )
    model = ModelFile(
        config=reader.fields(CONFIG),
        tokenizer=_tokenizer(reader, name),
        generation=reader.fields(GENERATION),
        origin=reader.fields(ORIGIN),
        parity=reader.fields(PARITY),
        golden=reader.fields(GOLDEN),
        graph=reader.fields(GRAPH),
        quality=reader.fields(QUALITY),
        digest=reader.texts(DIGEST),
    )
    _check(model, graph, name)
    if check_digest and model.digest and (changed := changed_entries(metadata, model.digest)):
        raise ModelFileError(f"{name} was changed after its export: its {', '.join(changed)}", EXPORT_AGAIN)
    return model


def cache_spare(graph: LoadedGraph) -> int:
    """Positions that a cache of this graph needs beyond its tokens (`passes/spare_row.py` of the export)."""
    return int(EntryReader(graph.metadata, "the model file").fields(GRAPH).get(CACHE_SPARE, 0))


def _tokenizer(reader: EntryReader, name: str) -> Tokenizer | None:
    values = reader.value(TOKENIZER)
    if values is None:
        return None
    try:
        return Tokenizer.from_dict(values)
    except TokenizerError as error:
        raise ModelFileError(f"{name} has a damaged tokenizer: {error.problem}", EXPORT_AGAIN) from error


def _check(model: ModelFile, graph: LoadedGraph, name: str) -> None:
    """Raise ModelFileError where metadata and graph contradict each other."""
    inputs, outputs = graph.inputs, graph.outputs
    for needed, present in ((INPUT_IDS, inputs), (LOGITS_AT, inputs), (LOGITS, outputs)):
        if needed not in present:
            raise ModelFileError(f"{name} has no {needed!r} in its graph", EXPORT_AGAIN)
    shape = outputs[LOGITS].shape
    width = shape[-1] if len(shape) == 3 else None
    if width != model.vocab_size:
        raise ModelFileError(
            f"{name} says its vocabulary is {model.vocab_size}, but its graph gives {width} logits",
            EXPORT_AGAIN,
        )
    if model.tokenizer is not None and model.tokenizer.vocab_size > model.vocab_size:
        raise ModelFileError(
            f"{name} has a tokenizer of {model.tokenizer.vocab_size} ids for a vocabulary of {model.vocab_size}",
            EXPORT_AGAIN,
        )
    named = {
        "an end id": model.end_ids,
        "a begin id": [] if model.bos_id is None else [model.bos_id],
        "an id after texts": [] if model.final_id is None else [model.final_id],
        "a golden prompt with the id": [
            token_id for prompt in model.golden_prompts for token_id in _golden_ids(prompt)
        ],
    }
    for what, ids in named.items():
        if outside := [token_id for token_id in ids if token_id >= model.vocab_size]:
            raise ModelFileError(
                f"{name} has {what} {outside[0]}, outside its vocabulary of {model.vocab_size}", EXPORT_AGAIN
            )
    if any(len(p["ids"]) + len(p["tokens"]) - 1 > model.context_length for p in model.golden_prompts):
        raise ModelFileError(
            f"{name} has a golden prompt longer than its context of {model.context_length}", EXPORT_AGAIN
        )
    if model.generation.get(ADD_BOS) and model.bos_id is None:
        raise ModelFileError(f"{name} begins every text with a token and does not say which", EXPORT_AGAIN)


def _golden_ids(prompt: Mapping[str, Any]) -> list[int]:
    return [*prompt["ids"], *prompt["tokens"], *(i for step in prompt["logits"] for i in step["ids"])]
