"""The model as it is exported: vocabulary cut to what the tokenizer can decode, dropout off.

Many models pad their vocabulary to a round number. A padded row can win the sampling, and then there is
no text for it; without the rows that cannot happen and the file is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edgelm.checkpoint import Checkpoint, build_model
from edgelm.model import Transformer
from edgelm_runtime.errors import ExportError

VOCABULARY_ROWS = ("token_embedding.weight", "head.weight", "head.bias")


def trimmed(checkpoint: Checkpoint) -> Transformer:
    """A model in eval mode on the CPU that shares the checkpoint's weights, its vocabulary cut to size.

    Raises ExportError where the tokenizer has ids that the model does not know.
    """
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    vocab_size = model.config.vocab_size
    if tokenizer is not None:
        if tokenizer.vocab_size > vocab_size:
            raise ExportError(
                f"the tokenizer has {tokenizer.vocab_size} ids and the model only {vocab_size}",
                "give the tokenizer that the model was trained with",
            )
        vocab_size = tokenizer.vocab_size
    weights = {name: weight.detach().cpu() for name, weight in model.state_dict().items()}
    for name in VOCABULARY_ROWS:
        if name in weights:
            weights[name] = weights[name][:vocab_size]
    if model.config.tied_head:
        del weights["head.weight"]
    config = replace(model.config, vocab_size=vocab_size, dropout=0.0)
    return build_model(config, weights, "the checkpoint").eval()


@contextmanager
def evaluating(model: Transformer) -> Iterator[Transformer]:
    """Eval mode inside the block; afterwards each part is in the mode that it was in before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, training in modes:
            module.training = training
