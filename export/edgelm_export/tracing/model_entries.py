"""Metadata that come from the checkpoint and the model."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np

from edgelm import __version__
from edgelm.checkpoint import Checkpoint
from edgelm.model import StoredModel
from edgelm_runtime.errors import ExportError
from edgelm_runtime.model_file.interface import (
    CONFIG,
    END_IDS,
    FORMAT,
    FORMAT_ENTRY,
    GENERATION,
    ORIGIN,
    TOKENIZER,
)

TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime")


def model_entries(checkpoint: Checkpoint, model: StoredModel) -> dict[str, Any]:
    """What stays the same in every precision: format, configuration, tokenizer, generation, origin.

    `model` is the model as exported. Raises ExportError where an end id is outside its vocabulary.
    """
    tokenizer = checkpoint.tokenizer
    generation = dict(checkpoint.generation)
    if END_IDS not in generation:
        end = tokenizer.end_of_text if tokenizer is not None else None
        generation[END_IDS] = [] if end is None else [end]
    if outside := [i for i in generation[END_IDS] if not 0 <= i < model.config.vocab_size]:
        raise ExportError(
            f"the end-of-text id {outside[0]} is outside the vocabulary of {model.config.vocab_size}",
            "correct end_ids in the checkpoint's config.json",
        )
    origin = checkpoint.origin | {"weights_sha256": weights_digest(model), "versions": versions()}
    if "path" in origin:
        # A name says where a model came from; the folders above it are nobody's business.
        origin["path"] = Path(origin["path"]).name
    return {
        FORMAT_ENTRY: FORMAT,
        CONFIG: model.config.to_dict(),
        TOKENIZER: tokenizer.to_dict() if tokenizer is not None else None,
        GENERATION: generation,
        ORIGIN: origin,
    }


def versions() -> dict[str, str]:
    """Versions of edgelm and of the packages that decide what a graph looks like."""
    return {"edgelm": __version__} | {tool: importlib.metadata.version(tool) for tool in TOOLS}


def weights_digest(model: StoredModel) -> str:
    """SHA-256 over the exported weights, in the order of the checkpoint."""
    digest = hashlib.sha256()
    for name in model.weights:
        digest.update(np.ascontiguousarray(model.read(name).numpy()).data)
    return digest.hexdigest()
