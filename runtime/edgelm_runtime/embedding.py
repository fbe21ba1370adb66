"""Vectors for texts: the states inside the model, pooled and normalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.engine.graph_inputs import empty_cache, padded
from edgelm_runtime.errors import ModelFileError, NumericsError
from edgelm_runtime.model_file.interface import INPUT_IDS, LOGITS_AT
from edgelm_runtime.validation import choice, shown, whole

if TYPE_CHECKING:
    from edgelm_runtime.engine.session import Session

Layer = Literal["hidden", "embeddings"]
Pooling = Literal["mean", "last", "none"]
Floats = NDArray[np.float32]


def embed_rows(
    session: Session,
    rows: Sequence[NDArray[np.int64]],
    layer: Layer,
    pooling: Pooling,
    normalize: bool,
    batch_size: int,
) -> list[Floats]:
    """A vector (width,) for each row of token ids; with pooling `none` its states (T, width).

    Raises OptionError for an unknown option, ModelFileError where the file lacks the output `layer`, NumericsError
    where a state is not finite.
    """
    choice("layer", layer, get_args(Layer))
    choice("pooling", pooling, get_args(Pooling))
    whole("batch_size", batch_size, 1)
    if layer not in session.outputs:
        raise ModelFileError(
            f"this model file has no output {shown(layer)}", f"export it with --outputs {layer}"
        )
    vectors: list[Floats] = []
    for start in range(0, len(rows), batch_size):
        for state in _states(session, rows[start : start + batch_size], layer):
            pooled = _pooled(state, pooling)
            if not np.isfinite(pooled).all():
                raise NumericsError(
                    f"the model's {layer} states are not finite", "check the model with `edgelm verify`"
                )
            vectors.append(_unit(pooled) if normalize else pooled)
    return vectors


def _states(session: Session, rows: Sequence[NDArray[np.int64]], layer: Layer) -> list[Floats]:
    """States (T, width) of each row. Asking for the logits of no position leaves the head out."""
    ids = padded(rows)
    feeds = {
        INPUT_IDS: ids,
        LOGITS_AT: np.zeros((1, 0), np.int64),
        **empty_cache(session.inputs, *ids.shape),
    }
    output = session.run((layer,), feeds)[0]
    return [state[: len(row)].astype(np.float32) for state, row in zip(output, rows, strict=True)]


def _pooled(state: Floats, pooling: Pooling) -> Floats:
    if pooling == "none":
        return state
    pooled: Floats = state[-1] if pooling == "last" else state.mean(axis=0)
    return pooled


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Floats = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
