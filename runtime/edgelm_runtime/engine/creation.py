"""From an open model file to an onnxruntime session that has its weights mapped, and to a message where that fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgelm_runtime.engine.mapped_pages import SMALLEST, give_back
from edgelm_runtime.engine.providers import PROVIDER_OPTIONS
from edgelm_runtime.engine.session_options import session_options
from edgelm_runtime.errors import ModelFileError
from edgelm_runtime.model_file.opened import COPY_AGAIN, OpenModel

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def create(
    source: OpenModel | bytes, threads: int | None, optimize: bool, as_stored: bool, providers: list[str],
    weights: Path | None = None,
) -> ort.InferenceSession:  # fmt: skip
    """A session for `source`, its weights mapped from where they lie; those of bytes are files in the folder `weights`.

    Raises ModelFileError.

    onnxruntime opens weights by name. Where another file has taken the name since `source` was opened, what is held
    open is given to it as bytes instead, which takes more memory.
    """

    # Folding turns float16 weights, which are cast to float32 when the graph runs, into float32 copies.
    unwanted = ["ConstantFolding"] if as_stored else None

    def start(
        graph: bytes | str, folder: Path | None = None, files: Mapping[str, memoryview | bytes] | None = None
    ) -> ort.InferenceSession:
        options = session_options(threads, optimize, as_stored)
        if folder is not None:
            options.add_session_config_entry(WEIGHTS_FOLDER, str(folder))
        if files:
            contents = [np.frombuffer(content, np.uint8) for content in files.values()]
            options.add_external_initializers_from_files_in_memory(
                list(files), contents, [len(content) for content in contents]
            )
        configured = [(name, PROVIDER_OPTIONS.get(name, {})) for name in providers]
        try:
            return ort.InferenceSession(graph, options, providers=configured, disabled_optimizers=unwanted)
        except Exception as error:  # onnxruntime raises classes of its own with no common base
            raise _not_usable(source, error) from error

    if isinstance(source, bytes):
        return start(source, weights)
    mapped = source.graph_for_mapping()
    if mapped is not None or not source.sidecars:
        try:
            session = start(*mapped) if mapped is not None else start(str(source.file.path))
            if not source.replaced():
                if source.size > SMALLEST:
                    give_back([file.path for file in source.files])
                return session
        except ModelFileError:
            if not source.replaced():
                raise
    graph, files = source.in_memory()
    return start(graph, files={name: memoryview(content) for name, content in files.items()})


def _not_usable(source: OpenModel | bytes, error: Exception) -> ModelFileError:
    text = str(error)
    name = source.name if isinstance(source, OpenModel) else "the model given as bytes"
    if "accuracy_level for operator QMoE" in text:
        return ModelFileError(
            f"{name} has experts in 4 or 8 bits, which onnxruntime {ort.__version__} does not know",
            "update onnxruntime to 1.31 or newer, or take the file in fp32 or fp16",
        )
    # onnxruntime says which versions it reads, in a sentence for each kind.
    found = re.search(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)", text)
    kind = "IR version"
    if not found:
        found = re.search(r"Opset (\d+) is under development.*?is till opset (\d+)", text)
        kind = "opset"
    if found:
        return ModelFileError(
            f"{name} has ONNX {kind} {found[1]}, and onnxruntime {ort.__version__} reads {kind} {found[2]} at most",
            "update onnxruntime, or export the model with a lower --opset",
        )
    return ModelFileError(f"{name} is not a usable ONNX model: {one_line(error)}", COPY_AGAIN)


def one_line(error: Exception) -> str:
    """The message of an error of onnxruntime, which may be a page."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    return " ".join(text.split())[:300]
