"""optimum-onnx: an exported graph with a cache, through transformers' `generate`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import onnxruntime
from optimum.onnxruntime import ORTModelForCausalLM

from adapters import hf


class Peer(hf.Peer):
    def _load(self, model: str, threads: int) -> Any:
        self.version = f"optimum-onnx {version('optimum-onnx')}, onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        return ORTModelForCausalLM.from_pretrained(model, session_options=options)
