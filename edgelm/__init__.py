"""edgelm: small language models from text to one .onnx file that any program can run.

    import edgelm
    lm = edgelm.load("model.onnx")
    print(lm.generate("def main(", max_new_tokens=40).text)

Running a model needs no PyTorch. What trains, imports and exports lives in `edgelm.training`,
`edgelm.importers` and `edgelm_export`, and is imported from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from edgelm_runtime import EdgelmError as EdgelmError
    from edgelm_runtime import Generation as Generation
    from edgelm_runtime import LanguageModel as LanguageModel
    from edgelm_runtime import load as load

__all__ = ["EdgelmError", "Generation", "LanguageModel", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Fetch the runtime's names on first use, so that `edgelm --help` does not start onnxruntime."""
    if name in __all__:
        import edgelm_runtime

        return getattr(edgelm_runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
