"""Random weights of a real model's shape, as a Hugging Face folder: `tests/benchmarks/random_model.py SHAPE FOLDER`.

For measuring what a size takes where the model itself cannot be had. Weights are bfloat16, a shard per few layers, and
made a tensor at a time. The tokenizer is a byte-level BPE with as many ids as the model's own, trained on the Python
files of this environment. Scales are such that the model's choices are clear (mostly the token that it reads): of
logits that are all alike, quantisation would choose others without losing anything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "attention_bias": False, "mlp_bias": False, "rope_theta": 500000.0,
}  # fmt: skip
QWEN = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}
COMMON = {"tie_word_embeddings": True, "torch_dtype": "bfloat16"}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-1b": LLAMA | COMMON | {
        "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen3-0.6b": QWEN | COMMON | {
        "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "max_position_embeddings": 40960,
    },
    "tiny": LLAMA | COMMON | {
        "vocab_size": 2048, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "max_position_embeddings": 512,
    },
}  # fmt: skip
SHARD = 1 << 28  # weights in a shard
TEXT = 100 << 20  # bytes that the tokenizer learns from
EMBEDDING = 0.02  # standard deviation
GROWTH = 2  # how much larger states become from the first layer to the last


def main() -> None:
    shape, folder = SHAPES[sys.argv[1]], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    end = _write_tokenizer(folder, shape["vocab_size"])
    about = shape | {"eos_token_id": end, "bos_token_id": end}
    (folder / "config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
    _write_weights(folder, shape)


def _write_weights(folder: Path, shape: dict[str, Any]) -> None:
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}

    def write() -> None:
        name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, {"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, tensor in _weights(shape):
        shard[name] = tensor
        if sum(weight.numel() for weight in shard.values()) > SHARD:
            write()
    write()
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _weights(shape: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    random = np.random.default_rng(0)
    width, inner, size = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    layers, heads, kv = (
        shape[f"num_{part}"] for part in ("hidden_layers", "attention_heads", "key_value_heads")
    )

    def matrix(rows: int, columns: int, deviation: float) -> torch.Tensor:
        values = random.standard_normal((rows, columns), dtype=np.float32) * np.float32(deviation)
        return torch.from_numpy(values).bfloat16()

    def norm(features: int) -> torch.Tensor:
        return torch.from_numpy(random.uniform(0.8, 1.2, features).astype(np.float32)).bfloat16()

    # Each layer adds as much as makes the states grow by GROWTH in all.
    added = EMBEDDING * ((GROWTH**2 - 1) / (2 * layers)) ** 0.5
    yield "model.embed_tokens.weight", matrix(shape["vocab_size"], width, EMBEDDING)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", norm(width)
        for part, rows in (("q", heads * size), ("k", kv * size), ("v", kv * size)):
            yield f"{at}self_attn.{part}_proj.weight", matrix(rows, width, width**-0.5)
        if shape["model_type"] == "qwen3":
            yield at + "self_attn.q_norm.weight", norm(size)
            yield at + "self_attn.k_norm.weight", norm(size)
        yield at + "self_attn.o_proj.weight", matrix(width, heads * size, 4 * added * (heads * size) ** -0.5)
        yield at + "post_attention_layernorm.weight", norm(width)
        for part in ("gate", "up"):
            yield f"{at}mlp.{part}_proj.weight", matrix(inner, width, width**-0.5)
        yield at + "mlp.down_proj.weight", matrix(width, inner, 2 * added * inner**-0.5)
    yield "model.norm.weight", norm(width)


def _write_tokenizer(folder: Path, vocab_size: int) -> int:
    """The id of the end of text, the last one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    end = tokenizer.token_to_id("<|endoftext|>")
    if end != vocab_size - 1:
        print(f"the tokenizer has {end + 1} of {vocab_size} ids: there is too little text", file=sys.stderr)
    return int(end)


def _texts() -> Iterator[str]:
    left = TEXT
    for path in sorted(Path(np.__file__).parents[1].rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        yield text
        left -= len(text)
        if left < 0:
            return


if __name__ == "__main__":
    main()
