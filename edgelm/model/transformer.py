"""The transformer: embeddings, pre-norm blocks, final norm, head. Reads top to bottom.

Choices, and why:
- Position embeddings are added as a slice of their table, `weight[:T]`: no index tensor is made in a
  forward pass or stored in a checkpoint, and the exported graph holds a Slice where a Gather would be.
- Rotary tables are computed once and kept out of the checkpoint; they follow from the config.
- Hidden states and logits are separate steps, so that nothing vocabulary-wide is computed for positions
  that nobody asked about.
- A tied head is the embedding matrix itself, not a copy.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from edgelm.config import ModelConfig
from edgelm.model.attention import Attention, Rotate
from edgelm.model.convolution import ShortConvolution
from edgelm.model.experts import Experts
from edgelm.model.mlp import MLP
from edgelm.model.norm import make_norm
from edgelm.model.operators import Operators, TorchOperators
from edgelm.model.position import rotary_table


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or both from the same x (`parallel_residual`). Some layers have a
    convolution in the place of attention.

    Norms stand before the two parts, after them, or both (`pre_norm`, `post_norm`).
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.parallel = config.parallel_residual
        self.attention_norm = make_norm(config) if config.pre_norm else nn.Identity()
        if config.convolves(layer):
            self.convolution = ShortConvolution(config, layer)
        else:
            self.attention = Attention(config, layer)
        self.attention_post_norm = make_norm(config) if config.post_norm else nn.Identity()
        self.mlp_norm = make_norm(config) if config.pre_norm else nn.Identity()
        self.mlp = Experts(config) if config.num_experts else MLP(config)
        self.mlp_post_norm = make_norm(config) if config.post_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, rotate: Rotate | None, operators: Operators) -> torch.Tensor:
        mixed = self.attention_post_norm(self._mixed(self.attention_norm(x), rotate, operators))
        base = x if self.parallel else x + self.dropout(mixed)
        fed = self.dropout(self.mlp_post_norm(self.mlp(self.mlp_norm(base), operators)))
        return base + self.dropout(mixed) + fed if self.parallel else base + fed

    def _mixed(self, x: torch.Tensor, rotate: Rotate | None, operators: Operators) -> torch.Tensor:
        if hasattr(self, "convolution"):
            return self.convolution(x, operators)
        return self.attention(x, rotate, operators.attend)


class Transformer(nn.Module):
    """A decoder-only language model described by a `ModelConfig`.

    `model(ids, targets=None)` gives (logits, loss or None); `embed` and `hidden` give the states before
    the first block and after the final norm. Token ids are int64 (B, T) with T up to the context length.
    """

    cos_full: torch.Tensor
    sin_full: torch.Tensor
    cos_local: torch.Tensor
    sin_local: torch.Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        if config.position == "learned":
            self.position_embedding = nn.Embedding(config.context_length, config.width)
        for name, table in self.rotations(config).items():
            self.register_buffer(name, table, persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.final_norm = make_norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.head_bias)
        if config.init == "gpt2":
            self._init_gpt2()
        if config.tied_head:
            self.head.weight = self.token_embedding.weight

    @staticmethod
    def rotations(config: ModelConfig) -> dict[str, torch.Tensor]:
        """The rotary tables that follow from `config`, by buffer name: float32 (context, rotary_dim / 2)."""
        tables: dict[str, torch.Tensor] = {}
        if config.position == "rotary":
            tables["cos_full"], tables["sin_full"] = rotary_table(config, local=False)
            if config.local_rope_theta:
                tables["cos_local"], tables["sin_local"] = rotary_table(config, local=True)
        return tables

    def _init_gpt2(self) -> None:
        """Normal(0, 0.02); projections into the residual stream shrink with its number of summands."""
        residual = 0.02 / math.sqrt(2 * self.config.num_layers)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                into_residual = name.endswith(("attention.out", "convolution.output", "mlp.down"))
                nn.init.normal_(module.weight, std=residual if into_residual else 0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def embed(self, ids: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Token plus position embeddings (B, T, width), without running a block.

        `positions` (B, T) are needed only where rows start elsewhere than at 0, as with a cache.
        """
        x = self.token_embedding(ids)
        if self.config.embedding_scale != 1.0:
            x = x * self.config.embedding_scale
        if self.config.position == "learned":
            table = self.position_embedding.weight
            x = x + (table[: ids.shape[1]] if positions is None else table[positions])
        return x

    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor | None = None,
        operators: Operators = TorchOperators(),  # noqa: B008 - it is frozen
    ) -> torch.Tensor:
        """States after the final norm (B, T, width). `operators` let an exporter put its own in the place of
        attention, rotation and the choice of experts."""
        return self.from_embeddings(self.embed(ids, positions), positions, operators)

    def from_embeddings(
        self,
        x: torch.Tensor,
        positions: torch.Tensor | None = None,
        operators: Operators = TorchOperators(),  # noqa: B008 - it is frozen
    ) -> torch.Tensor:
        """Blocks and final norm over embeddings (B, T, width)."""
        x = self.dropout(x)
        for block, turn in zip(self.blocks, self.rotations_by_layer(positions, operators), strict=True):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(block, x, turn, operators, use_reentrant=False)
            else:
                x = block(x, turn, operators)
        return self.final_norm(x)

    def rotations_by_layer(
        self,
        positions: torch.Tensor | None = None,
        operators: Operators = TorchOperators(),  # noqa: B008 - it is frozen
    ) -> list[Rotate | None]:
        """What turns the queries and keys of each layer; None where nothing does."""
        if self.config.position != "rotary":
            return [None] * self.config.num_layers

        def full(x: torch.Tensor) -> torch.Tensor:
            return operators.rotate_by(x, self.cos_full, self.sin_full, positions)

        def local(x: torch.Tensor) -> torch.Tensor:
            return operators.rotate_by(x, self.cos_local, self.sin_local, positions)

        local_turn = local if self.config.local_rope_theta else full
        return [
            (local_turn if self.config.is_local(layer) else full) if self.config.rotates(layer) else None
            for layer in range(self.config.num_layers)
        ]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits (..., vocab) for hidden states (..., width)."""
        logits = self.head(hidden)
        cap = self.config.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits (B, T, vocab), and the mean cross-entropy in nats where `targets` (B, T) are given.

        Targets of -100 do not count.
        """
        logits = self.logits(self.hidden(ids))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
