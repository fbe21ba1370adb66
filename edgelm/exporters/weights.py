"""This project's weights under the names of another program: the importers' rules, backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.importers.weight_arrangements import halves_apart, heads_apart, plus_one, transposed
from edgelm.importers.weight_rules import Arrange, Family, Rule, join, weight_plan
from edgelm.model import Transformer
from edgelm_runtime.errors import ExportError

Parts = Sequence[torch.Tensor]
# Fields of the architecture that no other program keeps, and that no result depends on.
_NOT_COMPARED = ("dropout", "init")


def refuse_experts(config: ModelConfig) -> None:
    """Raise ExportError for a model whose MLPs are routed experts."""
    if config.num_experts:
        raise ExportError(
            f"a model with {config.num_experts} experts in each layer cannot be written in this format",
            "export it to ONNX, or convert the model that it was imported from",
        )


def named_weights(checkpoint: Checkpoint, family: Family) -> dict[str, torch.Tensor]:
    """The weights, float32, by the family's names. Raises CheckpointError where it has no name for one."""
    config = checkpoint.config
    state = checkpoint.model.state_dict()
    named: dict[str, torch.Tensor] = {}
    for target, (rule, sources) in weight_plan(family, config).items():
        parts = _taken_apart(state[target].detach(), rule, len(sources), config)
        named.update(zip(sources, (part.contiguous() for part in parts), strict=True))
    return named


def _taken_apart(weight: torch.Tensor, rule: Rule, count: int, config: ModelConfig) -> Parts:
    """What the rule would make `weight` of."""
    undo = _UNDO.get(rule.arrange)
    if undo is None:
        raise ExportError(f"{rule.target} cannot be written in this format")
    return undo(weight, count, config)


def _apart(weight: torch.Tensor, count: int, config: ModelConfig) -> Parts:
    if count == 1:
        return [weight]
    if count == 3:  # queries, keys, values
        keys = config.num_kv_heads * config.head_dim
        return weight.split([config.num_heads * config.head_dim, keys, keys])
    return weight.chunk(count)


def _transposed(weight: torch.Tensor, count: int, config: ModelConfig) -> Parts:
    return [weight.t()]


def _less_one(weight: torch.Tensor, count: int, config: ModelConfig) -> Parts:
    return [weight - 1]


def _heads_together(weight: torch.Tensor, count: int, config: ModelConfig) -> Parts:
    each = weight.view(3, config.num_heads, config.head_dim, *weight.shape[1:])
    return [each.transpose(0, 1).reshape(weight.shape)]


def _neighbours(weight: torch.Tensor, count: int, config: ModelConfig) -> Parts:
    query, key, value = _apart(weight, 3, config)
    return [_paired(query, config.num_heads, config), _paired(key, config.num_kv_heads, config), value]


def _paired(rows: torch.Tensor, heads: int, config: ModelConfig) -> torch.Tensor:
    each = rows.view(heads, config.head_dim, *rows.shape[1:])
    half = config.rotary_dim // 2
    pairs = [index for pair in zip(range(half), range(half, 2 * half), strict=True) for index in pair]
    return each[:, [*pairs, *range(2 * half, config.head_dim)]].reshape(rows.shape)


_UNDO: dict[Arrange, Callable[[torch.Tensor, int, ModelConfig], Parts]] = {
    join: _apart,
    transposed: _transposed,
    plus_one: _less_one,
    heads_apart: _heads_together,
    halves_apart: _neighbours,
}


def difference(checkpoint: Checkpoint, again: Checkpoint, least_bits: int = 32) -> str:
    """What the importer read that is not the checkpoint; empty where all of it is the same.

    Weights stored in fewer bits have to be near only.
    """
    for item in fields(ModelConfig):
        ours, theirs = getattr(checkpoint.config, item.name), getattr(again.config, item.name)
        same = abs(ours - theirs) <= 1e-6 * abs(ours) if isinstance(ours, float) else ours == theirs
        if not same and item.name not in (*_NOT_COMPARED, "rope_scaling"):
            return f"{item.name} {ours!r}"
    # Formats spell the scaling of rotary frequencies in different ways: the tables that follow are compared.
    tables, others = Transformer.rotations(checkpoint.config), Transformer.rotations(again.config)
    if not all(torch.allclose(table, others[name], atol=1e-4) for name, table in tables.items()):
        return f"rope_scaling {checkpoint.config.rope_scaling!r}"
    allowed = 0.0 if least_bits == 32 else 2.0 ** (4 - least_bits)
    theirs = again.model.state_dict()
    for name, weight in checkpoint.model.state_dict().items():
        if (weight.cpu() - theirs[name]).abs().max() > allowed * weight.abs().max():
            return name
    return ""
