"""What a model file says about itself, read from the graph's metadata and held against the graph.

Format 1 is described in runtime/README.md. Metadata values are JSON under `edgelm.*`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import EdgelmError, ModelFileError, TokenizerError
from edgelm_runtime.model_file.interface import FORMAT, PREFIX
from edgelm_runtime.text.tokenizer import Tokenizer

EXPORT_AGAIN = "export the model again"


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
        """Tokens that the model sees at most."""
        return int(self.config["context_length"])

    @property
    def vocab_size(self) -> int:
        """Number of token ids, and width of the logits."""
        return int(self.config["vocab_size"])

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return tuple(self.generation.get("end_ids", ()))


def is_model_file(metadata: Mapping[str, str]) -> bool:
    """Whether `metadata` are those of an edgelm model file, of any version."""
    return PREFIX + "format" in metadata


def read_model_file(session: Session, name: str) -> ModelFile:
    """The metadata of the loaded graph. `name` stands for the file in messages.

    Raises ModelFileError where it is not an edgelm file, is of a newer format, is incomplete, or says
    something that the graph contradicts.
    """
    metadata = session.metadata
    if not is_model_file(metadata):
        raise ModelFileError(
            f"{name} is an ONNX model without edgelm's metadata",
            "give --tokenizer and --context-length to run a model from elsewhere",
        )
    version = _json(metadata, "format", name)
    if version != FORMAT:
        raise ModelFileError(
            f"{name} is of format {version!r}, and this edgelm reads format {FORMAT}", "update edgelm"
        )
    try:
        tokenizer = _json(metadata, "tokenizer", name) if PREFIX + "tokenizer" in metadata else None
        model = ModelFile(
            config=_mapping(metadata, "config", name),
            tokenizer=Tokenizer.from_dict(tokenizer) if tokenizer is not None else None,
            generation=_mapping(metadata, "generation", name),
            origin=_mapping(metadata, "origin", name, optional=True),
            parity=_mapping(metadata, "parity", name, optional=True),
            golden=_mapping(metadata, "golden", name, optional=True),
            graph=_mapping(metadata, "graph", name, optional=True),
            quality=_mapping(metadata, "quality", name, optional=True),
            digest=_mapping(metadata, "digest", name, optional=True),
        )
        _check(model, session, name)
    except TokenizerError as error:
        raise ModelFileError(f"{name} has a damaged tokenizer: {error.problem}", EXPORT_AGAIN) from error
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, EdgelmError):
            raise
        raise ModelFileError(f"{name} has damaged metadata: {error!r}", EXPORT_AGAIN) from error
    return model


def _check(model: ModelFile, session: Session, name: str) -> None:
    """Raise ModelFileError where metadata and graph contradict each other."""
    inputs, outputs = session.inputs, session.outputs
    for needed, present in (("input_ids", inputs), ("logits_at", inputs), ("logits", outputs)):
        if needed not in present:
            raise ModelFileError(f"{name} has no {needed!r} in its graph", EXPORT_AGAIN)
    width = outputs["logits"].shape[-1]
    if width != model.vocab_size:
        raise ModelFileError(
            f"{name} says its vocabulary is {model.vocab_size}, but its graph gives {width} logits",
            EXPORT_AGAIN,
        )
    if model.context_length < 1:
        raise ModelFileError(f"{name} says its context is {model.context_length} tokens", EXPORT_AGAIN)
    if model.tokenizer is not None and model.tokenizer.vocab_size > model.vocab_size:
        raise ModelFileError(
            f"{name} has a tokenizer of {model.tokenizer.vocab_size} ids for a vocabulary of {model.vocab_size}",
            EXPORT_AGAIN,
        )
    if any(not 0 <= token_id < model.vocab_size for token_id in model.end_ids):
        raise ModelFileError(f"{name} has end ids {model.end_ids} outside its vocabulary", EXPORT_AGAIN)


def _json(metadata: Mapping[str, str], key: str, name: str) -> Any:
    try:
        return json.loads(metadata[PREFIX + key])
    except KeyError:
        raise ModelFileError(f"{name} lacks the metadata entry {PREFIX + key}", EXPORT_AGAIN) from None
    except ValueError as error:
        raise ModelFileError(f"{name} has a damaged entry {PREFIX + key}: {error}", EXPORT_AGAIN) from error


def _mapping(metadata: Mapping[str, str], key: str, name: str, optional: bool = False) -> Mapping[str, Any]:
    if optional and PREFIX + key not in metadata:
        return {}
    value = _json(metadata, key, name)
    if not isinstance(value, dict):
        raise ModelFileError(f"{name} has a damaged entry {PREFIX + key}: not an object", EXPORT_AGAIN)
    return value
