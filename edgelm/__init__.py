"""edgelm: small language models from text to one .onnx file that any program can run.

    import edgelm
    lm = edgelm.load("model.onnx")
    print(lm.generate("def main(", max_new_tokens=40).text)

Offers everything that `edgelm_runtime` does. Running a model needs no PyTorch; what trains, imports and exports lives
in `edgelm.training`, `edgelm.importers` and `edgelm_export`, and is imported from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import edgelm_runtime

__version__ = "0.1.0"

if TYPE_CHECKING:
    from edgelm_runtime import *  # noqa: F403

__all__ = ["__version__", *edgelm_runtime.__all__]


def __getattr__(name: str) -> Any:
    """Fetch the runtime's names on first use, so that `edgelm --help` does not start onnxruntime."""
    if name in edgelm_runtime.__all__:
        return getattr(edgelm_runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
