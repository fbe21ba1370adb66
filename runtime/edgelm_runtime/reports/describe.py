"""What a model file is, as plain values: for `edgelm info` and for programs that list models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgelm_runtime.engine.session import Session
from edgelm_runtime.model_file.interface import CONTEXT_LENGTH, FORMAT, VOCAB_SIZE, TensorInfo
from edgelm_runtime.model_file.metadata import ModelFile, is_model_file, read_model_file
from edgelm_runtime.validation import path_of


def describe(path: str | Path) -> dict[str, Any]:
    """Sizes, architecture, interface, parity and origin of a model file, as JSON values.

    A plain ONNX model from elsewhere has its size and interface described and `format` None. Raises
    ModelFileError where the file cannot be loaded.
    """
    path = path_of("the model", path)
    session = Session(path, "cpu", optimize=False, as_stored=True)  # nothing is computed
    try:
        files = session.model
        assert files is not None  # it was loaded from a path
        about: dict[str, Any] = {
            "path": str(path),
            "bytes": files.file.size,
            "sidecar": ", ".join(files.sidecars) or None,
            "sidecar_bytes": files.size - files.file.size,
            "format": None,
            "inputs": _tensors(session.inputs),
            "outputs": _tensors(session.outputs),
        }
        if is_model_file(session.metadata):
            about |= _about_model(read_model_file(session, str(path), check_digest=False))
        return about
    finally:
        session.close()


def _about_model(model: ModelFile) -> dict[str, Any]:
    tokenizer = model.tokenizer
    return {
        "format": FORMAT,
        CONTEXT_LENGTH: model.context_length,
        VOCAB_SIZE: model.vocab_size,
        "architecture": dict(model.config),
        "tokenizer": None
        if tokenizer is None
        else {"tokens": len(tokenizer.tokens), "special": tokenizer.special, "digest": tokenizer.digest},
        "generation": dict(model.generation),
        "graph": dict(model.graph),
        "parity": dict(model.parity),
        "quality": dict(model.quality),
        "golden_prompts": len(model.golden_prompts),
        "origin": dict(model.origin),
        "digest": model.digest.get("graph"),
    }


def _tensors(tensors: dict[str, TensorInfo]) -> dict[str, dict[str, Any]]:
    return {name: {"type": info.type, "shape": list(info.shape)} for name, info in tensors.items()}
