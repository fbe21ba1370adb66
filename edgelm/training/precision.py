"""Whether a run computes in float32 or, by autocast, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch


def precision_context(precision: str, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """A maker of autocast contexts; `auto` takes bfloat16 where the processor multiplies it natively."""
    if precision == "auto":
        precision = "bf16" if _gains_from_bf16(device) else "fp32"
    if precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, torch.bfloat16)


def _gains_from_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return _cpu_multiplies_bf16()
    return False


def _cpu_multiplies_bf16() -> bool:
    if not hasattr(torch.cpu, "get_capabilities"):  # PyTorch before 2.10
        checks = (
            getattr(torch.cpu, name, lambda: False)
            for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        )
        return any(check() for check in checks)
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("arm_bf16"))
