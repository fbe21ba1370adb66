"""How tensors of a source become one weight of the model, where they are not simply taken as they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgelm.config import ModelConfig
from edgelm.importers.weight_rules import join


def transposed(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """GPT-2's Conv1D keeps (in, out); a Linear keeps (out, in). Biases stay as they are."""
    return join(tensors, config).t()


def plus_one(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """Gemma's norms multiply by 1 + weight."""
    return join(tensors, config).float() + 1


def heads_apart(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """GPT-NeoX keeps query, key and value of each head together: (heads, 3, head_dim) rows."""
    rows = join(tensors, config)
    each = rows.view(config.num_heads, 3, config.head_dim, *rows.shape[1:])
    return each.transpose(0, 1).reshape(rows.shape)


def halves_apart(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """llama.cpp pairs neighbouring rotary features (2i, 2i + 1); here a pair is half the rotation apart.

    Takes query, key and value rows. The way there is `LlamaModel.permute` of llama.cpp's converter.
    """
    query, key, value = tensors
    return torch.cat(
        [_halved(query, config.num_heads, config), _halved(key, config.num_kv_heads, config), value]
    )


def gates_and_ups(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """Rows of gate and linear half in turn, (experts, 2 * width, in), of all experts.

    Takes both in one tensor (gate first), one tensor of each, or all gates and then all linear halves.
    """
    if tensors[0].dim() == 2:
        half = len(tensors) // 2
        gate, up = torch.stack(list(tensors[:half])), torch.stack(list(tensors[half:]))
    else:
        gate, up = tensors[0].chunk(2, dim=1) if len(tensors) == 1 else tensors
    return torch.stack((gate, up), dim=2).flatten(1, 2)


def stacked(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """One matrix of each expert as (experts, out, in)."""
    return tensors[0] if tensors[0].dim() == 3 else torch.stack(list(tensors))


def positions_first(tensors: Sequence[torch.Tensor], config: ModelConfig) -> torch.Tensor:
    """A kernel of each feature, (width, 1, length) or (width, length), as (length, width). Biases stay as they are."""
    kernel = join(tensors, config)
    return kernel if kernel.dim() == 1 else kernel.flatten(1).t()


def _halved(rows: torch.Tensor, heads: int, config: ModelConfig) -> torch.Tensor:
    each = rows.view(heads, config.head_dim, *rows.shape[1:])  # fails for figures that do not fit
    rotary = config.rotary_dim
    order = [*range(0, rotary, 2), *range(1, rotary, 2), *range(rotary, config.head_dim)]
    return each[:, order].reshape(rows.shape)
