"""The model as it is exported: vocabulary cut to what the tokenizer can decode, dropout off.

Many models pad their vocabulary to a round number. A padded row can win the sampling, and then there is
no text for it; without the rows that cannot happen and the file is smaller.
"""

from __future__ import annotations

from edgelm.checkpoint import Checkpoint
from edgelm.model import StoredModel
from edgelm_runtime.errors import ExportError


def trimmed(checkpoint: Checkpoint) -> StoredModel:
    """The checkpoint's model, its vocabulary cut to size.

    Raises ExportError where the tokenizer has ids that the model does not know.
    """
    model, tokenizer = checkpoint.stored, checkpoint.tokenizer
    vocab_size = model.config.vocab_size
    if tokenizer is not None:
        if tokenizer.vocab_size > vocab_size:
            raise ExportError(
                f"the tokenizer has {tokenizer.vocab_size} ids and the model only {vocab_size}",
                "give the tokenizer that the model was trained with",
            )
        vocab_size = tokenizer.vocab_size
    return model.with_vocabulary(vocab_size)
