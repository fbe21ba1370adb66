"""The `edgelm.*` entries of a model file (runtime/README.md describes them for readers)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgelm_export.files.writer import append_metadata
from edgelm_export.passes.spare_row import SPARE, SPARE_NAME
from edgelm_runtime.model_file.digest import DIGEST_KEY, file_digest, sidecar_sample
from edgelm_runtime.model_file.interface import GRAPH, PREFIX, SIDECAR_SAMPLE
from edgelm_runtime.model_file.opened import OpenModel


def graph_facts(graph: ir.Model, dtype: str, parameters: int, sidecar: Path | None) -> dict[str, Any]:
    """The `edgelm.graph` entry: what `info` shows about the graph without onnx installed."""
    nodes = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in graph.graph)
    weights = [value.const_value for value in graph.graph.initializers.values()]
    return {
        "opset": graph.opset_imports[""],
        "ir_version": graph.ir_version,
        "dtype": dtype,
        "parameters": parameters,
        "weight_bytes": sum(weight.nbytes for weight in weights if weight is not None),
        "operators": dict(sorted(nodes.items())),
        "cache_spare": SPARE if SPARE_NAME in graph.graph.initializers else 0,
        "sidecar": sidecar.name if sidecar is not None else None,
    }


def seal(path: Path, entries: Mapping[str, Any]) -> None:
    """Append `entries` (named without the prefix) to a written graph, and the digest over everything."""
    with OpenModel(path) as model:
        if sample := sidecar_sample(model):
            entries = {**entries, GRAPH: {**entries[GRAPH], SIDECAR_SAMPLE: sample}}
    append_metadata(path, {PREFIX + name: _json(value) for name, value in entries.items()})
    with OpenModel(path) as model:
        digest = file_digest(model)
    append_metadata(path, {DIGEST_KEY: _json(digest)})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
