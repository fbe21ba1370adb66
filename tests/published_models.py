"""Two published models written from their formulas, under their own names, as references for tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class ScratchHead(nn.Module):
    def __init__(self, size: int, width: int, context: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, size, bias=False) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(context, context)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.key.out_features)
        length = x.shape[1]
        return scores.masked_fill(self.tril[:length, :length] == 0, -torch.inf).softmax(-1) @ self.value(x)


class ScratchBlock(nn.Module):
    def __init__(self, heads: int, width: int, context: int, projection: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.Module()
        self.attn.heads = nn.ModuleList(ScratchHead(width // heads, width, context) for _ in range(heads))
        if projection:
            self.attn.proj = nn.Linear(width, width)
        self.mlp = nn.Module()
        self.mlp.hidden, self.mlp.proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.ln1(x)
        mixed = torch.cat([head(normed) for head in self.attn.heads], dim=-1)
        x = x + (self.attn.proj(mixed) if hasattr(self.attn, "proj") else mixed)
        return x + self.mlp.proj(F.relu(self.mlp.hidden(self.ln2(x))))


class LlmFromScratch(nn.Module):
    """The model of train-llm-from-scratch by its formulas, under its names."""

    def __init__(
        self, vocab: int = 70, width: int = 30, context: int = 26, heads: int = 5, projection: bool = True
    ) -> None:
        super().__init__()
        self.token_embed, self.position_embed = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.attn_blocks = nn.ModuleList(ScratchBlock(heads, width, context, projection) for _ in range(3))
        self.layer_norm, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab)
        self.register_buffer("pos_idxs", torch.arange(context))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token_embed(ids) + self.position_embed(self.pos_idxs[: ids.shape[1]])
        for block in self.attn_blocks:
            x = block(x)
        return self.lm_head(self.layer_norm(x))


class NanoBlock(nn.Module):
    def __init__(self, heads: int, width: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attn.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """nanoGPT's model by its formulas, under its names."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        width, bias = arguments["n_embd"], arguments["bias"]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(arguments["vocab_size"], width),
            "wpe": nn.Embedding(arguments["block_size"], width),
            "h": nn.ModuleList(NanoBlock(arguments["n_head"], width, bias) for _ in range(arguments["n_layer"])),
            "ln_f": nn.LayerNorm(width, bias=bias),
        })  # fmt: skip
        self.lm_head = nn.Linear(width, arguments["vocab_size"], bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        parts = self.transformer
        x = parts["wte"](ids) + parts["wpe"].weight[: ids.shape[1]]
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))
