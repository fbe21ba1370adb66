"""How onnxruntime is set up.

- Threads default to the smaller of CPU affinity and container quota; onnxruntime counts the machine's cores.
- The worker threads stop spinning when a run is over, so an idle process uses no CPU.
- Denormal numbers stay as they are: the option that makes them zero would also change the arithmetic of the
  program that loads a model, for good (and gained nothing on models that were trained to the end).
"""

from __future__ import annotations

import functools
import os

import numpy as np
import onnxruntime as ort

from edgelm_runtime.engine.threads import default_threads
from edgelm_runtime.validation import whole

ERRORS_ONLY = 3


def check_threads(threads: int | None) -> None:
    """Raise OptionError for what is no number of threads."""
    if threads is not None:
        whole("threads", threads, 1)


def session_options(threads: int | None, optimize: bool, as_stored: bool = False) -> ort.SessionOptions:
    """New options, for one session. More threads than the machine has processors would only wait for each other.

    `as_stored`: products read weights as they lie in the file, and not from copies in the order that they like best.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = min(threads, os.cpu_count() or threads) if threads else default_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if _saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if as_stored:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


# `MatMulInteger` of a, uint8, and b, int8: an ONNX model of one node, opset 10.
_PRODUCT = (
    b'\x08\x04:O\n\x18\n\x01a\n\x01b\x12\x01c"\rMatMulInteger\x12\x00'
    b"Z\x0f\n\x01a\x12\n\n\x08\x08\x02\x12\x04\n\x00\n\x00Z\x0f\n\x01b\x12\n\n\x08\x08\x03\x12\x04\n\x00\n\x00"
    b"b\x0f\n\x01c\x12\n\n\x08\x08\x06\x12\x04\n\x00\n\x00B\x04\n\x00\x10\n"
)


@functools.cache
def _saturates() -> bool:
    """Whether onnxruntime's fast product of uint8 by int8 clips sums on this processor.

    x86 processors without VNNI add two products in 16 bits. There an exact way is asked for, which takes half as
    long again; with VNNI it would be a third of the speed given away (SmolLM2, 64 tokens: 28 against 18 ms).
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    session = ort.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    feeds = {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 32), 127, np.int8)}
    return bool((session.run(None, feeds)[0] != 64 * 255 * 127).any())
