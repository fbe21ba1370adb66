"""The options of `export_checkpoint`, checked before anything takes time and without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgelm_export.opsets import FUSED_OPSET, LAST_OPSET, TARGETS
from edgelm_export.quantization.precision import FP32, Quantization, QuantizeOptions
from edgelm_runtime.errors import OptionError
from edgelm_runtime.model_file.interface import EXTRA_OUTPUTS
from edgelm_runtime.validation import number, whole

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class GraphOptions:
    """What the float32 graph is to be."""

    opset: int
    kv_cache: bool
    target: str
    outputs: tuple[str, ...]
    atol: float | None
    """Largest absolute difference from PyTorch's logits; None: in proportion to the largest logit."""


def check_options(
    *,
    dtype: str = FP32,
    kv_cache: bool = False,
    target: str = "cpu",
    outputs: Sequence[str] = (),
    opset: int | None = None,
    atol: float | None = None,
    **options: Unpack[QuantizeOptions],
) -> tuple[GraphOptions, Quantization | None]:
    """What `export_checkpoint` is to do: the graph, and the precision it is quantised to, None for fp32.

    Raises OptionError for an option that is unknown, cannot be followed or would have no effect.
    """
    if atol is not None:
        number("atol", atol, 0, math.inf, open_low=True)
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        raise OptionError(
            f"outputs is {outputs!r}", f"give a list of names out of {', '.join(EXTRA_OUTPUTS)}"
        )
    for name in outputs:
        if name not in EXTRA_OUTPUTS:
            raise OptionError(f"there is no output {name!r}", f"choose from {', '.join(EXTRA_OUTPUTS)}")
    _check_target(target, kv_cache, dtype)
    quantization = Quantization.of(dtype, options)
    if quantization is not None:
        quantization.check_file(kv_cache)
    return GraphOptions(_opset(opset, target), kv_cache, target, tuple(outputs), atol), quantization


def _check_target(target: str, kv_cache: bool, dtype: str) -> None:
    if not isinstance(target, str) or target not in TARGETS:
        raise OptionError(f"there is no target {target!r}", f"choose from {', '.join(TARGETS)}")
    if target == "cpu":
        return
    if not kv_cache:
        raise OptionError(
            f"the target {target} is for a KV cache", "add --kv-cache; a file without one runs everywhere"
        )
    if dtype not in (FP32, "fp16"):
        # Their weights and caches are made for `GroupQueryAttention` and the CPU's kernels.
        raise OptionError(f"there is no {dtype} file with a KV cache for {target}", "choose fp32 or fp16")


def _opset(opset: int | None, target: str) -> int:
    """The opset asked for, or what `target` needs."""
    first = TARGETS[target]
    if opset is None:
        return max(first, FUSED_OPSET)
    whole("opset", opset, 0)
    if not first <= opset <= LAST_OPSET:
        which = "" if target == "cpu" else f" for a KV cache on {target}"
        raise OptionError(f"opset {opset} is not supported{which}", f"choose from {first} to {LAST_OPSET}")
    return opset
