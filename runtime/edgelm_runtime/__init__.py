"""edgelm's runtime: run a model file with numpy, onnxruntime and tiktoken alone.

    import edgelm_runtime
    with edgelm_runtime.load("model.onnx") as lm:
        for piece in lm.stream("def main(", max_new_tokens=40, temperature=0.8, seed=7):
            print(piece.text, end="", flush=True)

The embedding guide and the file's contract for other languages are in runtime/README.md.
"""

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
from edgelm_runtime.generation import ContextWarning, Stats, generate_ids
from edgelm_runtime.language_model import Generation, LanguageModel
from edgelm_runtime.loading import load
from edgelm_runtime.model_file import ModelFile
from edgelm_runtime.row import Limits, Piece
from edgelm_runtime.sampler import Sampling
from edgelm_runtime.scoring import Score
from edgelm_runtime.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer

__all__ = [
    "ClosedError",
    "ContextWarning",
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
