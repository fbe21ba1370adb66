"""A model whose weights stay where they are stored, and are read one at a time.

Files of a billion parameters are written, compared and quantised layer by layer; held as float32, their weights alone
would take more memory than many machines have. `Transformer` is for what needs all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from edgelm.config import ModelConfig
from edgelm.model.transformer import Transformer
from edgelm_runtime.errors import CheckpointError


@dataclass(frozen=True)
class Stored:
    """A tensor, read only when asked for."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]


class StoredModel:
    """The `weights` of `Transformer(config)` by name, in its order; a tied head is left out.

    Raises CheckpointError that lists missing, unknown and ill-shaped weights; `source` names their origin.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Stored], source: str) -> None:
        # A damaged figure must not build a million layers before the weights are looked at.
        if config.num_layers > len(weights):
            raise CheckpointError(
                f"{source} speaks of {config.num_layers} layers and holds {len(weights)} weights"
            )
        self.config = config
        shapes = {name: tuple(weight.shape) for name, weight in stored_weights(self.skeleton()).items()}
        problems = [f"missing {name}" for name in sorted(shapes.keys() - weights.keys())]
        problems += [f"unknown {name}" for name in sorted(weights.keys() - shapes.keys())]
        problems += [
            f"{name} has shape {weights[name].shape} instead of {shape}"
            for name, shape in shapes.items()
            if name in weights and weights[name].shape != shape
        ]
        if problems:
            raise CheckpointError(
                f"the weights of {source} do not fit its configuration: {'; '.join(problems)}"
            )
        self.weights = {name: weights[name] for name in shapes}

    @staticmethod
    def of(model: Transformer) -> StoredModel:
        """`model`, on any device, with its weights where they are."""
        weights = {
            name: Stored(tuple(weight.shape), partial(torch.Tensor.cpu, weight))
            for name, weight in stored_weights(model).items()
        }
        return StoredModel(model.config, weights, "the model")

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(torch.Size(weight.shape).numel() for weight in self.weights.values())

    def read(self, name: str) -> torch.Tensor:
        """A weight, float32, on the CPU."""
        if name == "head.weight" and self.config.tied_head:
            name = "token_embedding.weight"
        return self.weights[name].read().float().contiguous()

    def skeleton(self) -> Transformer:
        """A `Transformer` in eval mode whose weights have shapes and no content."""
        with torch.device("meta"):
            model = Transformer(self.config).eval()
        for name, table in Transformer.rotations(self.config).items():
            model.register_buffer(name, table, persistent=False)
        return model

    @contextmanager
    def loaded(self, skeleton: Transformer, *prefixes: str) -> Iterator[None]:
        """The weights of `skeleton` whose names begin so are there for as long as the block lasts."""
        empty = {name: weight for name, weight in skeleton.state_dict().items() if name.startswith(prefixes)}
        skeleton.load_state_dict({name: self.read(name) for name in empty}, strict=False, assign=True)
        try:
            yield
        finally:
            skeleton.load_state_dict(empty, strict=False, assign=True)

    def load(self) -> Transformer:
        """The model with all its weights in memory, taken over without a copy where they are float32 in memory."""
        model = self.skeleton()
        weights: dict[str, torch.Tensor] = {}
        places: set[int] = set()
        for name in self.weights:
            weight = self.read(name)
            # Two weights that come from one tensor (parallel parts after one norm) are two from here on.
            weights[name] = weight.clone() if weight.data_ptr() in places else weight
            places.add(weight.data_ptr())
        assign_weights(model, weights)
        return model

    def with_vocabulary(self, size: int) -> StoredModel:
        """The model with the first `size` ids only, and no dropout."""
        weights = dict(self.weights)
        for name in VOCABULARY_ROWS & weights.keys():
            shape = (size, *weights[name].shape[1:])
            weights[name] = Stored(shape, partial(_first_rows, weights[name], size))
        return StoredModel(replace(self.config, vocab_size=size, dropout=0.0), weights, "the model")


def _first_rows(weight: Stored, count: int) -> torch.Tensor:
    return weight.read()[:count]


VOCABULARY_ROWS = {"token_embedding.weight", "head.weight", "head.bias"}


def assign_weights(model: Transformer, weights: Mapping[str, torch.Tensor]) -> None:
    """Make `weights`, in which a tied head is left out, those of `model`."""
    tied = {"head.weight": weights["token_embedding.weight"]} if model.config.tied_head else {}
    model.load_state_dict({**weights, **tied}, assign=True)
    if tied:
        model.head.weight = model.token_embedding.weight


def stored_weights(model: Transformer) -> dict[str, torch.Tensor]:
    """The weights by name, without a tied head."""
    weights = {name: weight.detach().contiguous() for name, weight in model.state_dict().items()}
    if model.config.tied_head:
        del weights["head.weight"]
    return weights
