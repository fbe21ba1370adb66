"""A Hugging Face folder for the peers that want one; runs in the environment of transformers.

    python to_hugging_face.py FOLDER FILE.gguf OUT    the values of a GGUF file in fp32
    python to_hugging_face.py ten-million "" OUT      a Llama of ten million parameters with random weights

Also writes OUT/ids.json: the token ids of data/text.txt, so that all peers are given the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

TEXT = Path(__file__).parents[1] / "data" / "text.txt"


def main(folder: str, file: str, out: str) -> None:
    if folder == "ten-million":
        model, ids = _ten_million()
    else:
        model, ids = _from_gguf(folder, file, out)
    model.save_pretrained(out)
    (Path(out) / "ids.json").write_text(json.dumps(ids))


def _from_gguf(folder: str, file: str, out: str) -> tuple[torch.nn.Module, list[int]]:
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the values are in fp32 by now, and marked as such they can be saved
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    tokenizer.save_pretrained(out)
    return model, tokenizer(TEXT.read_text(), add_special_tokens=False)["input_ids"]


def _ten_million() -> tuple[torch.nn.Module, list[int]]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=320, intermediate_size=864, num_hidden_layers=7, num_attention_heads=5,
        num_key_value_heads=5, max_position_embeddings=1024, tie_word_embeddings=True,
    )  # fmt: skip
    ids = [byte * 7 % 4096 for byte in TEXT.read_bytes()]
    return LlamaForCausalLM(config), ids


if __name__ == "__main__":
    main(*sys.argv[1:])
