"""PEFT's low-rank adapters, merged at import."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from edgelm.checkpoint import load_checkpoint
from edgelm.cli import group
from edgelm.importers import load_source
from edgelm_runtime.errors import CheckpointError

transformers = pytest.importorskip("transformers")
LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 50,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 50}


def base(folder: Path, kind: str) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**LLAMA) if kind == "llama" else transformers.GPT2Config(**GPT2)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    return model


def adapter(folder: Path, model: Any, names: tuple[str, ...], turned: bool = False, **settings: Any) -> None:
    """Save an adapter for the layers that end in `names`, and add it to `model`."""
    folder.mkdir(exist_ok=True)
    rank, alpha, tensors = 3, 12, {}
    scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
    for name, weight in model.named_parameters():
        if not name.endswith(tuple(f"{each}.weight" for each in names)):
            continue
        out, into = weight.shape[::-1] if turned else weight.shape
        up, down = torch.randn(out, rank) * 0.2, torch.randn(rank, into) * 0.2
        stem = "base_model.model." + name.removesuffix(".weight")
        tensors |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
        with torch.no_grad():
            change = scale * up @ down
            weight += change.t() if turned else change
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "fan_in_fan_out": turned}
    (folder / "adapter_config.json").write_text(json.dumps({**about, **settings}))
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("kind", "names", "settings"),
    [
        ("llama", ("q_proj", "v_proj"), {}),
        ("llama", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), {"use_rslora": True}),
        ("gpt2", ("c_attn", "c_fc"), {}),
    ],
)  # fmt: skip
def test_a_merged_adapter_computes_what_it_should(
    tmp_path: Path, kind: str, names: tuple[str, ...], settings: dict[str, Any]
) -> None:
    model = base(tmp_path / "base", kind)
    adapter(tmp_path / "adapter", model, names, turned=kind == "gpt2", **settings)
    out = str(tmp_path / "out")
    arguments = ["import", str(tmp_path / "base"), "--tokenizer", "none", "--out", out]
    group.main([*arguments, "--adapter", str(tmp_path / "adapter")], standalone_mode=False)
    ids = torch.randint(50, (2, 20))
    with torch.no_grad():
        expected, found = model(ids).logits, load_checkpoint(Path(out)).model(ids)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"use_dora": True}, "use_dora"), ({"peft_type": "LOHA"}, "peft_type"), ({"r": 0}, "r is 0"),
     ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"), ({"modules_to_save": ["lm_head"]}, "modules_to_save")],
)  # fmt: skip
def test_another_kind_of_adapter_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    adapter(tmp_path / "adapter", base(tmp_path / "base", "llama"), ("q_proj",), **settings)
    with pytest.raises(CheckpointError, match=words):
        load_source(tmp_path / "base", "none", tmp_path / "adapter")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    adapter(tmp_path / "adapter", base(tmp_path / "gpt2", "gpt2"), ("c_attn",), turned=True)
    base(tmp_path / "llama", "llama")
    with pytest.raises(CheckpointError, match="does not have in that shape"):
        load_source(tmp_path / "llama", "none", tmp_path / "adapter")
    for source, other in (("llama", "llama"), ("adapter", "adapter")):
        with pytest.raises(CheckpointError, match=r"has no adapter_config|is no Hugging Face model"):
            load_source(tmp_path / source, "none", tmp_path / other)
