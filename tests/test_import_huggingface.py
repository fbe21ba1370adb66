"""Every Hugging Face architecture that can be imported, against transformers, at awkward sizes.

Logits are compared at 24 tokens and greedy text is generated: wrong rotary pairing, a wrong window or a
transposed square matrix stay hidden at one token.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tokenizers
import torch
import transformers

from edgelm.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from edgelm.importers import load_source
from edgelm.importers.huggingface.defaults import DEFAULTS
from edgelm.importers.huggingface.families import FAMILIES, LAYERS
from edgelm.importers.notices import DroppedSettingWarning
from edgelm.importers.settings import Settings
from edgelm_export import export_checkpoint
from edgelm_runtime import load
from edgelm_runtime.errors import CheckpointError, ConfigError, EdgelmError, TokenizerError
from edgelm_runtime.generation.options import defaults_from_file, split_options

torch.set_num_threads(1)
VOCAB, LENGTH = 97, 24

LLAMA = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 16, "rope_theta": 10000.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
EXPERTS = {**LLAMA, "num_experts": 6, "num_experts_per_tok": 3}
GEMMA = {**LLAMA, "num_key_value_heads": 1, "head_dim": 10, "sliding_window": 7, "query_pre_attn_scalar": 23}
NEOX = {"vocab_size": VOCAB, "hidden_size": 72, "intermediate_size": 44, "num_hidden_layers": 3,
        "num_attention_heads": 3, "max_position_embeddings": 64}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 40, "n_layer": 3, "n_head": 5}
NEO = {"vocab_size": VOCAB, "max_position_embeddings": 64, "hidden_size": 36, "num_layers": 3, "num_heads": 3,
       "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 5}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 narrow mlp, untied": ("GPT2", {**GPT2, "n_inner": 24, "tie_word_embeddings": False}),
    "gpt2 square, unscaled, relu": (
        "GPT2",
        {**GPT2, "n_inner": 40, "scale_attn_weights": False, "activation_function": "relu"},
    ),
    "llama": ("Llama", LLAMA),
    "llama tied, one kv head, odd head_dim": (
        "Llama",
        {**LLAMA, "num_key_value_heads": 1, "head_dim": 18, "tie_word_embeddings": True},
    ),
    "llama biases, as many kv heads": (
        "Llama",
        {**LLAMA, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "llama rope llama3": ("Llama", {**LLAMA, "rope_parameters": LLAMA3_ROPE}),
    "llama rope linear": (
        "Llama",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
    ),
    "llama rope yarn": ("Llama", {**LLAMA, "rope_parameters": YARN}),
    "llama rope yarn, mscale": (
        "Llama",
        {**LLAMA, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 8.0}},
    ),
    "mistral window": ("Mistral", {**LLAMA, "sliding_window": 6}),
    "mistral window over everything": ("Mistral", {**LLAMA, "sliding_window": 64}),
    "mistral no window, head_dim": ("Mistral", {**LLAMA, "sliding_window": None, "head_dim": 20}),
    "qwen2": ("Qwen2", LLAMA),
    "qwen2 window": (
        "Qwen2",
        {**LLAMA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 14}),
    "qwen3 bias, tied": (
        "Qwen3",
        {**LLAMA, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "gpt_neox": ("GPTNeoX", NEOX),
    "gpt_neox sequential, half rotary": (
        "GPTNeoX",
        {**NEOX, "use_parallel_residual": False, "rotary_pct": 0.5, "hidden_act": "gelu_new"},
    ),
    "gpt_neox no bias, whole rotary": ("GPTNeoX", {**NEOX, "attention_bias": False, "rotary_pct": 1.0}),
    "gpt_neo": ("GPTNeo", NEO),
    "gpt_neo narrow mlp": ("GPTNeo", {**NEO, "intermediate_size": 20, "activation_function": "gelu"}),
    "gemma3_text": ("Gemma3", {**GEMMA, "sliding_window_pattern": 2}),
    "gemma3_text capped, scaled": (
        "Gemma3",
        {
            **GEMMA,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "final_logit_softcapping": 2.5,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            },
        },
    ),
    "phi3 partial rotary, window": ("Phi3", {**LLAMA, "partial_rotary_factor": 0.5, "sliding_window": 6}),
    "phi3 longrope": (
        "Phi3",
        {
            **LLAMA,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 32,
                "short_factor": [1.0, 1.1, 1.3, 1.7, 2.2, 3.1],
                "long_factor": [2.0] * 6,
            },
        },
    ),
    "smollm3": ("SmolLM3", {**LLAMA, "no_rope_layer_interval": 2}),
    "smollm3 windows": (
        "SmolLM3",
        {
            **LLAMA,
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma": ("Gemma", {**LLAMA, "num_key_value_heads": 1, "head_dim": 14}),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 9.0}),
    "granite": (
        "Granite",
        {
            **LLAMA,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.11,
            "logits_scaling": 0.7,
        },
    ),
    "granite tied, biases": (
        "Granite",
        {
            **LLAMA,
            "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "olmo2": ("Olmo2", LLAMA),
    "olmo3": (
        "Olmo3",
        {
            **LLAMA,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {**YARN},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "exaone4 windows": (
        "Exaone4",
        {
            **LLAMA,
            "sliding_window": 6,
            "sliding_window_pattern": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "exaone4 no window": (
        "Exaone4",
        {**LLAMA, "sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "stablelm": ("StableLm", {**LLAMA, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm parallel": (
        "StableLm",
        {**LLAMA, "use_parallel_residual": True, "partial_rotary_factor": 0.4, "hidden_size": 60},
    ),
    "phi3 odd rotary width": ("Phi3", {**LLAMA, "partial_rotary_factor": 0.25}),
    "gpt_neox odd rotary width": ("GPTNeoX", {**NEOX, "rotary_pct": 0.3}),
    "phi": ("Phi", {**LLAMA, "num_key_value_heads": 4}),
    "phi grouped, normed": ("Phi", {**LLAMA, "qk_layernorm": True}),
    "starcoder2": ("Starcoder2", {**LLAMA, "sliding_window": 5}),
    "starcoder2 untied, no bias": ("Starcoder2", {**LLAMA, "use_bias": False, "tie_word_embeddings": False}),
    "helium": ("Helium", {**LLAMA, "head_dim": 12}),
    "ernie4_5": ("Ernie4_5", {**LLAMA, "head_dim": 14, "use_bias": True}),
    "seed_oss": ("SeedOss", {**LLAMA, "head_dim": 14, "attention_out_bias": True}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**EXPERTS, "head_dim": 14, "moe_intermediate_size": 20, "norm_topk_prob": True},
    ),
    "olmoe": ("Olmoe", {**EXPERTS, "norm_topk_prob": False}),
    "granitemoe": (
        "GraniteMoe",
        {
            **LLAMA,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.11,
            "logits_scaling": 1.7,
        },
    ),
    "granitemoeshared": (
        "GraniteMoeShared",
        {
            **LLAMA,
            "num_local_experts": 4,
            "num_experts_per_tok": 3,
            "shared_intermediate_size": 28,
            "residual_multiplier": 0.3,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2": (
        "Lfm2",
        {
            **LLAMA,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
            "conv_L_cache": 3,
            "block_multiple_of": 4,
        },
    ),
    "lfm2 longer kernel, biases, untied": (
        "Lfm2",
        {
            **LLAMA,
            "layer_types": ["full_attention", "conv", "full_attention"],
            "conv_L_cache": 5,
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "hunyuan_v1_dense": (
        "HunYuanDenseV1",
        {
            **LLAMA,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 100.0},
        },
    ),
    "internlm3": ("InternLM3", {**LLAMA, "head_dim": 14, "attention_bias": True, "mlp_bias": True}),
}


def build(name: str, **further: Any) -> Any:
    """A random transformers model, its weights large enough for text to differ."""
    kind, settings = CASES[name]
    inner = "Text" if kind == "Gemma3" else ""
    config = getattr(transformers, f"{kind}{inner}Config")(
        **{**settings, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": None, **further}
    )
    torch.manual_seed(7)
    head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    kind = "Llama" if kind == "InternLM3" else kind  # the reference has a config of its own and Llama's model
    model = getattr(transformers, f"{kind}{head}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.4 if parameter.dim() > 1 else 0.3))
    model.tie_weights()
    return model


def compare(checkpoint: Checkpoint, reference: Any) -> None:
    """Logits at 24 tokens to 1e-4 of their size, greedy text token for token."""
    ids = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, got = reference(ids).logits, checkpoint.model(ids)[0]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert float(expected.std()) > 0.1, "the comparison would see nothing"
    prompt = ids[:1, :5]
    text = reference.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    ours = prompt
    for _ in range(20):
        with torch.no_grad():
            ours = torch.cat([ours, checkpoint.model(ours)[0][:, -1:].argmax(-1)], dim=1)
    assert ours.tolist() == text.tolist()


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path / "hf")
    checkpoint = load_source(tmp_path / "hf", tokenizer="none")
    compare(checkpoint, model)
    save_checkpoint(checkpoint, tmp_path / "out")
    compare(load_checkpoint(tmp_path / "out"), model)


# One of each kind of graph that no other test exports: what a family adds to Llama.
EXPORTED = ["phi3 longrope", "smollm3 windows", "gemma2", "granite tied, biases", "olmo3", "exaone4 windows",
            "stablelm parallel", "phi grouped, normed", "starcoder2", "ernie4_5", "qwen3_moe", "granitemoeshared",
            "lfm2 longer kernel, biases, untied", "hunyuan_v1_dense"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kv_cache"),
    [*((name, True) for name in EXPORTED), ("olmo3", False), ("smollm3 windows", False), ("olmoe", False)],
)
def test_is_exported_as_transformers_has_it(name: str, kv_cache: bool, tmp_path: Path) -> None:
    """The exporter compares with PyTorch by itself; here logits and greedy text are the reference's."""
    model = build(name)
    model.save_pretrained(tmp_path / "hf")
    checkpoint = load_source(tmp_path / "hf", tokenizer="none")
    checkpoint.generation["end_ids"] = []
    export_checkpoint(checkpoint, tmp_path / "m.onnx", kv_cache=kv_cache)
    prompt = torch.randint(0, VOCAB, (1, 12), generator=torch.Generator().manual_seed(4))
    text = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    with load(tmp_path / "m.onnx") as lm, torch.no_grad():
        expected = model(prompt).logits[0]
        torch.testing.assert_close(
            torch.from_numpy(lm.logits(prompt[0].tolist())), expected, atol=1e-4, rtol=1e-4
        )
        assert lm.generate(prompt[0].tolist(), max_new_tokens=12).token_ids == text[0, 12:].tolist()


@pytest.mark.parametrize("name", ["llama rope llama3", "gpt_neox", "gemma3_text", "mistral window"])
def test_reads_the_older_spelling_of_the_config(name: str, tmp_path: Path) -> None:
    """Before transformers 5 rotary settings stood side by side, and Gemma's window had a pattern."""
    model = build(name)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    if name == "gemma3_text":
        config |= {"rope_theta": rope["full_attention"]["rope_theta"], "rope_scaling": None,
                   "rope_local_base_freq": rope["sliding_attention"]["rope_theta"],
                   "sliding_window_pattern": 2}  # fmt: skip
        del config["layer_types"]
    elif name == "gpt_neox":
        config |= {"rotary_emb_base": rope["rope_theta"], "rotary_pct": rope["partial_rotary_factor"]}
    else:
        config["rope_theta"] = rope.pop("rope_theta")
        scaled = rope["rope_type"] != "default"
        config["rope_scaling"] = {**rope, "type": rope.pop("rope_type")} if scaled else None
    (tmp_path / "config.json").write_text(json.dumps(config))
    compare(load_source(tmp_path, tokenizer="none"), model)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_become_float32(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    build(name).to(dtype).save_pretrained(tmp_path)
    checkpoint = load_source(tmp_path, tokenizer="none")
    assert {weight.dtype for weight in checkpoint.model.parameters()} == {torch.float32}
    compare(checkpoint, transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))


def test_shards_and_pytorch_files(tmp_path: Path) -> None:
    model = build("qwen2")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    compare(load_source(tmp_path / "shards", tokenizer="none"), model)
    model.save_pretrained(tmp_path / "bin")
    (tmp_path / "bin" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    compare(load_source(tmp_path / "bin", tokenizer="none"), model)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.module.", "module._orig_mod.transformer.model."])
def test_wrappers_prefixes_come_off(prefix: str, tmp_path: Path) -> None:
    model = build("gpt2")
    model.config.save_pretrained(tmp_path)
    torch.save(
        {prefix + key: value for key, value in model.state_dict().items()}, tmp_path / "pytorch_model.bin"
    )
    compare(load_source(tmp_path, tokenizer="none"), model)


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Change fields of a JSON file; those that are None go."""
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def test_tying_follows_from_equal_tensors_or_the_files_word(tmp_path: Path) -> None:
    """A head of its own counts whatever the flag says; one that is missing is never guessed."""
    tied, untied = build("llama tied, one kv head, odd head_dim"), build("llama")
    untied.save_pretrained(tmp_path / "a")
    rewrite(tmp_path / "a" / "config.json", {"tie_word_embeddings": True})
    compare(load_source(tmp_path / "a", tokenizer="none"), untied)
    tied.save_pretrained(tmp_path / "b")
    assert load_source(tmp_path / "b", tokenizer="none").config.tied_head
    for flag in (False, None):  # Llama's default is a head of its own
        rewrite(tmp_path / "b" / "config.json", {"tie_word_embeddings": flag})
        with pytest.raises(CheckpointError, match=r"missing lm_head\.weight"):
            load_source(tmp_path / "b", tokenizer="none")
    state = {key: value.clone() for key, value in tied.state_dict().items()}
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    tied.config.save_pretrained(tmp_path / "c")
    torch.save(state, tmp_path / "c" / "pytorch_model.bin")
    assert load_source(tmp_path / "c", tokenizer="none").config.tied_head


def test_missing_and_unknown_weights_are_listed(tmp_path: Path) -> None:
    model = build("llama")
    model.config.save_pretrained(tmp_path)
    state = dict(model.state_dict())
    del state["model.layers.1.self_attn.k_proj.weight"]
    state["model.layers.0.self_attn.extra.weight"] = torch.ones(2)
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as caught:
        load_source(tmp_path, tokenizer="none")
    assert "missing layers.1.self_attn.k_proj.weight" in str(caught.value)
    assert "unknown layers.0.self_attn.extra.weight" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("llama", {"model_type": "mamba"}, "mamba"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "short_factor is None"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
        ("llama", {"attention_bias": True}, "attention_bias is true, and the weights have no such biases"),
        ("smollm3", {"no_rope_layers": [1, 2, 3]}, "no_rope_layers"),
        ("llama", {"model_type": "hunyuan_v1_moe"}, "hunyuan_v1_moe"),
        ("llama rope yarn", {"rope_parameters": {**YARN, "truncate": False}}, "truncate"),
        ("llama", {"hidden_act": "laplace"}, "laplace"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ("llama", {"num_hidden_layers": 10**9}, "1000000000 layers"),
        ("llama", {"max_position_embeddings": 10**12}, "context_length is 1000000000000"),
        ("llama", {"head_dim": 12.5}, "head_dim is 12.5"),
        ("llama", {"num_key_value_heads": 3}, "num_kv_heads 3"),
        ("llama", {"num_attention_heads": 10**9}, "qkv.weight"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"n_embd": 41, "n_head": 1}, "position_embedding.weight"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gpt_neo", {"attention_types": [[["global", "sparse"], 1]]}, "attention_types"),
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused_by_name(
    name: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    build(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises((CheckpointError, ConfigError)) as caught:
        load_source(tmp_path, tokenizer="none")
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama"])
def test_buffers_of_older_versions_are_left_out(name: str, tmp_path: Path) -> None:
    """Masks and frequencies that transformers once stored; GPT-2's own files have no prefix either."""
    model = build(name)
    model.config.save_pretrained(tmp_path)
    state = {key.removeprefix("transformer."): value for key, value in model.state_dict().items()}
    old = {
        "gpt2": ("h.{}.attn.bias", "h.{}.attn.masked_bias"),
        "gpt_neox": ("gpt_neox.layers.{}.attention.bias", "gpt_neox.layers.{}.attention.rotary_emb.inv_freq"),
        "llama": ("model.layers.{}.self_attn.rotary_emb.inv_freq",),
    }
    state |= {key.format(layer): torch.ones(4) for key in old[name] for layer in range(3)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    compare(load_source(tmp_path, tokenizer="none"), model)


def small_tokenizer(bos: bool) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|begin|>", "<|end|>", "<|turn|>"],
    )  # fmt: skip
    made.train_from_iterator(["the cat and the hat"], trainer)
    if bos:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            "<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    return made


GENERATION: list[tuple[dict[str, Any], dict[str, Any], str | None, bool, dict[str, Any]]] = [
    # generation_config, tokenizer_config, chat_template.jinja, begin-of-text added, what comes out
    ({}, {}, None, False, {"end_ids": [1]}),
    ({"eos_token_id": [2, 1]}, {"eos_token": "<|turn|>"}, None, True,
     {"end_ids": [2, 1], "bos_id": 0, "add_bos": True}),
    ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1},
     {"eos_token": {"content": "<|turn|>"}, "bos_token": "<|begin|>"}, "{{ x }}", False,
     {"end_ids": [2, 1], "bos_id": 0, "add_bos": False, "chat_template": "{{ x }}", "temperature": 0.6, "top_p": 0.9,
      "top_k": 40, "repeat_penalty": 1.1, "repeat_last_n": -1}),
    # Gemma 3's: sampling without a temperature is at 1, and among 50 tokens where nothing is said.
    ({"do_sample": True, "top_p": 0.95, "eos_token_id": 2}, {}, None, False,
     {"end_ids": [2], "temperature": 1.0, "top_k": 50, "top_p": 0.95}),
    ({"do_sample": True, "temperature": 0.7, "top_k": -1}, {}, None, False,
     {"end_ids": [1], "temperature": 0.7, "top_k": 0}),
    ({"do_sample": True, "temperature": 0.7, "top_k": 30.0}, {}, None, False,
     {"end_ids": [1], "temperature": 0.7, "top_k": 30}),
    ({"stop_strings": ["\nUser"], "suppress_tokens": [5, 7], "bad_words_ids": [[7], [9]], "max_new_tokens": 2048},
     {}, None, False,
     {"end_ids": [1], "stop": ["\nUser"], "banned_tokens": [5, 7, 9], "max_new_tokens": 2048}),
    ({"do_sample": False, "temperature": 0.6}, {"chat_template": "{{ a }}"}, None, False,
     {"end_ids": [1], "chat_template": "{{ a }}"}),
    ({}, {"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}, None, False,
     {"end_ids": [1], "chat_template": "d"}),
]  # fmt: skip


@pytest.mark.parametrize(("defaults", "about", "template", "bos", "expected"), GENERATION)
def test_generation_settings_come_along(
    defaults: dict[str, Any],
    about: dict[str, Any],
    template: str | None,
    bos: bool,
    expected: Any,
    tmp_path: Path,
) -> None:
    build("llama", vocab_size=300).save_pretrained(tmp_path)
    small_tokenizer(bos).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    checkpoint = load_source(tmp_path)
    assert checkpoint.generation == expected
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.encode("the hat") == small_tokenizer(False).encode("the hat").ids


@pytest.mark.parametrize(
    ("defaults", "named"),
    [
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size 3"),
        ({"bad_words_ids": [[5, 6]]}, r"bad_words_ids \[\[5, 6\]\]"),
        ({"do_sample": True, "temperature": -2.0}, "temperature is -2"),
        ({"do_sample": True, "top_p": 0}, "top_p is 0"),
        ({"repetition_penalty": "high"}, "repeat_penalty is 'high'"),
        ({"max_new_tokens": [5]}, "max_new_tokens is"),
        ({"stop_strings": ["", "x"]}, "left out"),
        ({"num_beams": 4, "length_penalty": 0.5}, "length_penalty 0.5; num_beams 4"),
    ],
)
def test_what_is_not_carried_over_is_named(defaults: dict[str, Any], named: str, tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    with pytest.warns(DroppedSettingWarning, match=named):
        generation = load_source(tmp_path, tokenizer="none").generation
    split_options(defaults_from_file(generation))


def test_generation_settings_that_change_nothing_are_not_named(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    for defaults in (
        transformers.GenerationConfig().to_dict(),
        {"_from_model_config": True, "pad_token_id": 3, "num_beams": 1, "use_cache": True, "max_length": 20},
    ):
        (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert load_source(tmp_path, tokenizer="none").generation == {"end_ids": [1]}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"eos_token_id": VOCAB}),
        ("config.json", {"eos_token_id": -1}),
        ("generation_config.json", {"eos_token_id": [1, 5000]}),
        ("generation_config.json", {"eos_token_id": "</s>"}),
        ("generation_config.json", {"suppress_tokens": [VOCAB]}),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(file: str, change: dict[str, Any], tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text("{}")
    rewrite(tmp_path / file, change)
    with pytest.raises(CheckpointError, match=r"outside the vocabulary of 97|must be a token id"):
        load_source(tmp_path, tokenizer="none")


class Recorder(dict[str, Any]):
    """A dictionary that remembers which keys were asked for."""

    asked: ClassVar[set[str]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


# Fields that are read where they are there, without a default of their own.
OPTIONAL = {"rope_parameters", "rope_scaling", "layer_types", "original_max_position_embeddings", "quantization_config",
            "model_type", "hidden_activation", "partial_rotary_factor", "attn_logit_softcapping"}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(DEFAULTS.keys() - {"minicpm"}))  # of which transformers has no class
def test_fields_that_are_left_out_have_the_default_of_transformers(kind: str) -> None:
    """Field by field against the configuration class, and no field is read that has no default here."""
    reference = transformers.CONFIG_MAPPING[kind]
    empty = reference()
    rope = getattr(empty, "rope_parameters", None) or {}
    full, near = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    moved = {
        "rope_theta": full.get("rope_theta"), "rotary_emb_base": full.get("rope_theta"),
        "partial_rotary_factor": full.get("partial_rotary_factor"), "rotary_pct": full.get("partial_rotary_factor"),
        "rope_local_base_freq": near.get("rope_theta"),
        "sliding_window_pattern": getattr(empty, "_sliding_window_pattern", None),
    }  # fmt: skip
    for name, value in DEFAULTS[kind].items():
        theirs = getattr(reference, name, moved.get(name))
        if name == "attention_types":
            theirs = empty.attention_types
        assert value == theirs, name
    Recorder.asked = set()
    layers = next(empty.to_dict()[name] for name in LAYERS if name in empty.to_dict())
    settings = Settings(Recorder(DEFAULTS[kind]), "x")
    fields = FAMILIES[kind][1](settings, {}, layers)
    for ours, names in {
        "width": ("hidden_size", "n_embd"), "num_heads": ("num_attention_heads", "num_heads", "n_head"),
        "context_length": ("max_position_embeddings", "n_positions"), "num_kv_heads": ("num_key_value_heads",),
        "head_dim": ("head_dim",),
    }.items():  # fmt: skip
        theirs = next((getattr(empty, name) for name in names if getattr(empty, name, None)), None)
        assert ours not in fields or theirs is None or fields[ours] == theirs, ours
    local = [layer_type == "sliding_attention" for layer_type in getattr(empty, "layer_types", None) or []]
    if any(local) and fields.get("sliding_window"):
        kinds = fields["local_layers"]
        assert [kinds[layer % len(kinds)] for layer in range(layers)] == local
        assert fields["sliding_window"] == empty.sliding_window
    assert Recorder.asked - OPTIONAL <= set(DEFAULTS[kind])


@pytest.mark.parametrize("name", ["llama", "gpt_neo", "gemma3_text", "phi3 longrope"])
def test_values_of_the_wrong_kind_are_errors(name: str, tmp_path: Path) -> None:
    """Any field may hold anything: it is read, refused by name, or of no meaning, and never a traceback."""
    build(name).save_pretrained(tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    for field in good:
        for value in (
            None,
            True,
            -1,
            0,
            2.5,
            1e308,
            10**30,
            "x",
            [],
            [1],
            ["a"],
            {},
            {"a": [1]},
            {"rope_type": 5},
        ):
            (tmp_path / "config.json").write_text(json.dumps({**good, field: value}))
            try:
                load_source(tmp_path, tokenizer="none")
            except EdgelmError as error:
                assert "\n" not in str(error)


def test_no_tokenizer_names_the_ways_on(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match=r"--tokenizer PATH\|NAME, or --tokenizer none"):
        load_source(tmp_path)


def test_hub_names_need_the_package_and_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> str:
        raise OSError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(EdgelmError, match="no route to the hub"):
        load_source("some-org/some-model")


def test_hub_names_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    model = build("llama")
    model.save_pretrained(tmp_path)
    asked: list[tuple[str, str | None]] = []

    def download(name: str, revision: str | None, **_: Any) -> str:
        asked.append((name, revision))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    checkpoint = load_source("some-org/some-model", tokenizer="none")
    assert checkpoint.origin["path"] == "some-org/some-model"
    compare(checkpoint, model)
    load_source("some-org/some-model@refs/pr/3", tokenizer="none")
    assert asked == [("some-org/some-model", None), ("some-org/some-model", "refs/pr/3")]


def test_minicpm_is_granite_by_other_names(tmp_path: Path) -> None:
    """transformers has no class for it: its factors as its own code has them, against the class that has the same."""
    factors = {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 48 / 32}
    CASES["minicpm"] = (
        "Granite",
        {**LLAMA, **factors, "attention_multiplier": 12**-0.5, "tie_word_embeddings": True},
    )
    model = build("minicpm")
    model.save_pretrained(tmp_path)
    config = {
        **LLAMA,
        "model_type": "minicpm",
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 32,
        "eos_token_id": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    compare(load_source(tmp_path, tokenizer="none"), model)
    del CASES["minicpm"]
