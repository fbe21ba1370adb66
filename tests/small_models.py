"""Tiny checkpoints of many architectures, for tests that export."""

from __future__ import annotations

import string
from typing import Any

import torch

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig, RopeScaling
from edgelm.model import Transformer
from edgelm_runtime.text.tokenizer import Tokenizer

LLAMA: dict[str, Any] = {
    "position": "rotary", "norm": "rmsnorm", "activation": "silu", "gated_mlp": True,
    "qkv_bias": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip

# What differs from GPT-2 at width 24, 2 layers of 4 heads, 24 tokens of context.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "seed": {
        "activation": "relu", "qkv_bias": False, "tied_head": False, "head_bias": True, "init": "pytorch",
        "dropout": 0.1,
    },
    "gpt2": {"dropout": 0.2},
    "one head, one layer": {"num_heads": 1, "num_layers": 1, "width": 7, "context_length": 5},
    "one token of context": {"context_length": 1, "num_layers": 1},
    "grouped heads": {"num_kv_heads": 2, "rope_theta": 500.0, **LLAMA},
    "one shared key head": {
        "num_kv_heads": 1, "head_dim": 10,
        "rope_scaling": RopeScaling(kind="llama3", factor=4.0, original_context=8), **LLAMA,
    },
    "windows": {
        "sliding_window": 4, "local_layers": (True, False), "local_rope_theta": 100.0, "query_key_norm": True,
        "post_norm": True, "embedding_scale": 4.9, "attention_scale": 0.3, **LLAMA,
    },
    "soft caps": {"attention_softcap": 5.0, "logit_softcap": 3.0, "sliding_window": 3, **LLAMA},
    "norms after": {
        "pre_norm": False, "post_norm": True, "query_key_norm": True, "query_key_norm_joint": True, "num_kv_heads": 2,
        "rotary_layers": (True, False), **LLAMA,
    },
    "experts": {
        "num_experts": 6, "experts_per_token": 3, "normalize_experts": False, "mlp_width": 20, "shared_mlp_width": 12,
        "num_kv_heads": 2, **LLAMA,
    },
    "convolutions": {
        "convolution_layers": (True, False), "convolution_length": 3, "query_key_norm": True, "num_layers": 3, **LLAMA,
    },
    "parallel": {"parallel_residual": True, "position": "rotary", "rotary_dim": 2, "activation": "gelu"},
}  # fmt: skip


def small_model(name: str = "gpt2", **changes: Any) -> Transformer:
    """A model of one of ARCHITECTURES with weights large enough to make every part of it matter."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    sizes = {"vocab_size": 61, "context_length": 24, "width": 24, "num_layers": 2, "num_heads": 4}
    model = Transformer(ModelConfig(**(sizes | ARCHITECTURES[name] | changes)))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.15 * torch.randn_like(weight)
    return model


def small_tokenizer() -> Tokenizer:
    """Bytes, a few merges and an end-of-text, 260 ids."""
    merges = [b"th", b"the", b"in"]
    return Tokenizer([*(bytes([byte]) for byte in range(256)), *merges], special={"<|endoftext|>": 259})


def character_tokenizer() -> Tokenizer:
    """One id for each of 65 characters and none for others, as nanoGPT's character models have it."""
    characters = "\n !$&',-.3:;?" + string.ascii_letters
    tokens = [bytes([byte]) for byte in range(256)]
    ids = [characters.index(chr(byte)) if chr(byte) in characters else [] for byte in range(256)]
    return Tokenizer(tokens, r"[\s\S]", ids=ids)


def small_checkpoint(name: str = "gpt2", **changes: Any) -> Checkpoint:
    """A checkpoint with `small_tokenizer`, its vocabulary padded to 272."""
    return Checkpoint(small_model(name, **({"vocab_size": 272} | changes)), small_tokenizer())
