"""edgelm's exporter: from a checkpoint to one .onnx file that is known to compute the same.

    from edgelm.checkpoint import load_checkpoint
    from edgelm_export import export_checkpoint, quantize
    export_checkpoint(load_checkpoint(Path("run")), Path("model.onnx"))
    quantize(Path("model.onnx"), Path("small.onnx"), "int8")

Names are imported when they are first used: `quantize` needs no PyTorch, `export_checkpoint` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgelm_export.checks.parity import ParityReport as ParityReport
    from edgelm_export.export import compare_with_checkpoint as compare_with_checkpoint
    from edgelm_export.export import export_checkpoint as export_checkpoint
    from edgelm_export.options import check_options as check_options
    from edgelm_export.quantization.quality import Quality as Quality
    from edgelm_export.quantization.search import quantize as quantize

_MODULES = {
    "ParityReport": "checks.parity",
    "Quality": "quantization.quality",
    "compare_with_checkpoint": "export",
    "check_options": "options",
    "export_checkpoint": "export",
    "quantize": "quantization.search",
}
__all__ = [
    "ParityReport",
    "Quality",
    "check_options",
    "compare_with_checkpoint",
    "export_checkpoint",
    "quantize",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
