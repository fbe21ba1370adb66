"""edgelm's exporter: from a checkpoint to one .onnx file that is known to compute the same.

from edgelm.checkpoint import load_checkpoint
from edgelm_export import export_checkpoint, quantize
export_checkpoint(load_checkpoint(Path("run")), Path("model.onnx"))
quantize(Path("model.onnx"), Path("small.onnx"), "int8")
"""

from edgelm_export.checks.parity import ParityReport
from edgelm_export.export import compare_with_checkpoint, export_checkpoint
from edgelm_export.quantization.quality import Quality
from edgelm_export.quantization.search import quantize

__all__ = ["ParityReport", "Quality", "compare_with_checkpoint", "export_checkpoint", "quantize"]
