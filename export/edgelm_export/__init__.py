"""edgelm's exporter: from a checkpoint to one .onnx file that is known to compute the same.

from edgelm.checkpoint import load_checkpoint
from edgelm_export import export_checkpoint, quantize
export_checkpoint(load_checkpoint(Path("run")), Path("model.onnx"))
quantize(Path("model.onnx"), Path("small.onnx"), "int8")
"""

from edgelm_export.export import compare_with_checkpoint, export_checkpoint
from edgelm_export.parity import ParityReport
from edgelm_export.quality import Quality
from edgelm_export.quantize import quantize

__all__ = ["ParityReport", "Quality", "compare_with_checkpoint", "export_checkpoint", "quantize"]
