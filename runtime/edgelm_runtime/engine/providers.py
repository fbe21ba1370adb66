"""Execution providers: what this onnxruntime can compute on, and which of it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from edgelm_runtime.errors import OptionError, ProviderError
from edgelm_runtime.validation import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = "ExecutionProvider"
CPU, CUDA = "CPU" + SUFFIX, "CUDA" + SUFFIX
# CUDA multiplies float32 as float32. By default it rounds to 10 bits (TF32), and then a step and a longer pass, or the
# CPU and the GPU, would choose different tokens.
PROVIDER_OPTIONS = {CUDA: {"use_tf32": "0"}}


def choose_providers(provider: str) -> list[str]:
    """Provider names for onnxruntime, best first. `auto`: CUDA where this onnxruntime has it, else the CPU.

    Raises ProviderError for a provider that this onnxruntime does not have, OptionError for what is no name.
    """
    if not isinstance(provider, str):
        raise OptionError(f"provider is {shown(provider)}", "give a name such as auto, cpu or cuda")
    available = ort.get_available_providers()
    if provider == "auto":
        return [name for name in (CUDA, CPU) if name in available]
    wanted = {provider.lower(), (provider + SUFFIX).lower()}
    for name in available:
        if name.lower() in wanted:
            return [name] if name == CPU else [name, CPU]
    raise ProviderError(
        f"this onnxruntime has no provider {shown(provider)}",
        f"it has {', '.join(map(short_name, available))}; others come with other onnxruntime packages",
    )


def check_provider(asked: str, wanted: list[str], running: str) -> None:
    """Raise ProviderError where another provider runs than was `asked` for; onnxruntime falls back in silence."""
    if asked != "auto" and running != wanted[0]:
        raise ProviderError(
            f"the provider {asked!r} was asked for, but {short_name(running)!r} runs",
            "check its drivers and libraries, or use --provider cpu",
        )


def short_name(provider: str) -> str:
    """A provider's name as users write it."""
    return provider.removesuffix(SUFFIX).lower()


def on_device(array: NDArray[Any], device: str) -> Any:
    """`array` in the memory of `device`, as onnxruntime's `OrtValue`: a copy, except for `cpu`."""
    return ort.OrtValue.ortvalue_from_numpy(array, device, 0)
