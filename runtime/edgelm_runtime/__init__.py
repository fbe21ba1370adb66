"""edgelm's runtime: run a model file with numpy, onnxruntime and tiktoken alone.

    import edgelm_runtime
    with edgelm_runtime.load("model.onnx") as lm:
        for piece in lm.stream("def main(", max_new_tokens=40, temperature=0.8, seed=7):
            print(piece.text, end="", flush=True)

The embedding guide and the file's contract for other languages are in runtime/README.md.

Names are fetched on first use, so that a program that only catches `EdgelmError` or shows its help text does not
start onnxruntime.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgelm_runtime.conversation import Conversation
    from edgelm_runtime.decoder import Decoder, RecomputeDecoder
    from edgelm_runtime.errors import (
        ClosedError,
        EdgelmError,
        MissingExtraError,
        ModelFileError,
        NumericsError,
        OptionError,
        ProviderError,
        TokenizerError,
        VerificationError,
    )
    from edgelm_runtime.generation import ContextWarning, Generation, Stats, generate_ids
    from edgelm_runtime.language_model import LanguageModel
    from edgelm_runtime.loading import load
    from edgelm_runtime.model_file import ModelFile
    from edgelm_runtime.options import Options
    from edgelm_runtime.row import Limits, Piece
    from edgelm_runtime.sampler import Sampling
    from edgelm_runtime.scoring import Score
    from edgelm_runtime.tokenizer import Tokenizer
    from edgelm_runtime.tokenizer_sources import byte_tokenizer, load_tokenizer

__all__ = [
    "ClosedError",
    "ContextWarning",
    "Conversation",
    "Decoder",
    "EdgelmError",
    "Generation",
    "LanguageModel",
    "Limits",
    "MissingExtraError",
    "ModelFile",
    "ModelFileError",
    "NumericsError",
    "OptionError",
    "Options",
    "Piece",
    "ProviderError",
    "RecomputeDecoder",
    "Sampling",
    "Score",
    "Stats",
    "Tokenizer",
    "TokenizerError",
    "VerificationError",
    "byte_tokenizer",
    "generate_ids",
    "load",
    "load_tokenizer",
]

_MODULES = {
    "Conversation": "conversation", "Decoder": "decoder", "RecomputeDecoder": "decoder",
    "ContextWarning": "generation", "Generation": "generation", "Stats": "generation", "generate_ids": "generation",
    "LanguageModel": "language_model", "load": "loading", "ModelFile": "model_file", "Options": "options",
    "Limits": "row", "Piece": "row", "Sampling": "sampler", "Score": "scoring", "Tokenizer": "tokenizer",
    "byte_tokenizer": "tokenizer_sources", "load_tokenizer": "tokenizer_sources",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
