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
    from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
    from edgelm_runtime.errors import (
        ClosedError,
        EdgelmError,
        MissingExtraError,
        ModelFileError,
        NumericsError,
        OptionError,
        ProviderError,
        QueueFullError,
        TokenizerError,
        VerificationError,
    )
    from edgelm_runtime.generation.decoder import Decoder
    from edgelm_runtime.generation.keywords import Options
    from edgelm_runtime.generation.loop import generate_ids
    from edgelm_runtime.generation.options import Limits, Sampling
    from edgelm_runtime.generation.results import ContextWarning, Generation, Piece, Stats
    from edgelm_runtime.language_model import LanguageModel
    from edgelm_runtime.loading import load
    from edgelm_runtime.model_file.metadata import ModelFile
    from edgelm_runtime.reports.verify import VerifyReport, verify
    from edgelm_runtime.scoring import Score
    from edgelm_runtime.serving.engine import Engine, EngineStatus
    from edgelm_runtime.serving.ticket import Ticket
    from edgelm_runtime.text.tokenizer import Tokenizer
    from edgelm_runtime.text.tokenizer_loading import byte_tokenizer, load_tokenizer

__all__ = [
    "ClosedError",
    "ContextWarning",
    "Conversation",
    "Decoder",
    "EdgelmError",
    "Engine",
    "EngineStatus",
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
    "QueueFullError",
    "RecomputeDecoder",
    "Sampling",
    "Score",
    "Stats",
    "Ticket",
    "Tokenizer",
    "TokenizerError",
    "VerificationError",
    "VerifyReport",
    "byte_tokenizer",
    "generate_ids",
    "load",
    "load_tokenizer",
    "verify",
]

_MODULES = {
    "Conversation": "conversation", "LanguageModel": "language_model", "load": "loading", "Score": "scoring",
    "Decoder": "generation.decoder", "generate_ids": "generation.loop",
    "Limits": "generation.options", "Options": "generation.keywords", "Sampling": "generation.options",
    "ContextWarning": "generation.results", "Generation": "generation.results", "Piece": "generation.results",
    "Stats": "generation.results", "RecomputeDecoder": "engine.recompute_decoder",
    "ModelFile": "model_file.metadata", "Tokenizer": "text.tokenizer",
    "VerifyReport": "reports.verify", "verify": "reports.verify",
    "Engine": "serving.engine", "EngineStatus": "serving.engine", "Ticket": "serving.ticket",
    "byte_tokenizer": "text.tokenizer_loading", "load_tokenizer": "text.tokenizer_loading",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
