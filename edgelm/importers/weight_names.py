"""Weight names of every family that can be imported, as data.

Targets are the names of `edgelm.model.Transformer`, sources those of the program that wrote the file,
without wrappers' prefixes. Rows of this project's `qkv` are all queries, then keys, then values; those
of a gated `up` are the gate, then the rest; rotary features are paired half a rotation apart.
"""

from __future__ import annotations

from dataclasses import replace

from edgelm.importers.weight_arrangements import (
    gates_and_ups,
    halves_apart,
    heads_apart,
    plus_one,
    positions_first,
    stacked,
    transposed,
)
from edgelm.importers.weight_rules import Arrange, Family, Rule, join


def _both(target: str, *sources: str, arrange: Arrange = join) -> tuple[Rule, Rule]:
    """The rules for a weight and its bias, which the config may leave out."""
    return (
        Rule(f"{target}.weight", tuple(f"{name}.weight" for name in sources), arrange),
        Rule(f"{target}.bias", tuple(f"{name}.bias" for name in sources), arrange),
    )


def _convolution(prefix: str, kernel: str) -> tuple[Rule, ...]:
    return (
        *_both("blocks.{i}.convolution.input", f"{prefix}.in_proj"),
        *_both("blocks.{i}.convolution.kernel", f"{prefix}.{kernel}", arrange=positions_first),
        *_both("blocks.{i}.convolution.output", f"{prefix}.out_proj"),
    )


LLM_FROM_SCRATCH = Family(
    rules=(
        *_both("token_embedding", "token_embed"),
        *_both("position_embedding", "position_embed"),
        *_both("blocks.{i}.attention_norm", "attn_blocks.{i}.ln1"),
        *_both(
            "blocks.{i}.attention.qkv",
            *("attn_blocks.{i}.attn.heads.{h}." + part for part in ("query", "key", "value")),
        ),
        *_both("blocks.{i}.attention.out", "attn_blocks.{i}.attn.proj"),
        *_both("blocks.{i}.mlp_norm", "attn_blocks.{i}.ln2"),
        *_both("blocks.{i}.mlp.up", "attn_blocks.{i}.mlp.hidden"),
        *_both("blocks.{i}.mlp.down", "attn_blocks.{i}.mlp.proj"),
        *_both("final_norm", "layer_norm"),
        *_both("head", "lm_head"),
    ),
    layer="attn_blocks.",
    embedding="token_embed.weight",
    head="lm_head.weight",
    ignored=(r".*\.tril", "pos_idxs", r"(?:reward|value)_head\..*"),
)


def _gpt2(matrix: Arrange) -> Family:
    return Family(
        rules=(
            *_both("token_embedding", "wte"),
            *_both("position_embedding", "wpe"),
            *_both("blocks.{i}.attention_norm", "h.{i}.ln_1"),
            *_both("blocks.{i}.attention.qkv", "h.{i}.attn.c_attn", arrange=matrix),
            *_both("blocks.{i}.attention.out", "h.{i}.attn.c_proj", arrange=matrix),
            *_both("blocks.{i}.mlp_norm", "h.{i}.ln_2"),
            *_both("blocks.{i}.mlp.up", "h.{i}.mlp.c_fc", arrange=matrix),
            *_both("blocks.{i}.mlp.down", "h.{i}.mlp.c_proj", arrange=matrix),
            *_both("final_norm", "ln_f"),
            *_both("head", "lm_head"),
        ),
        layer="h.",
        embedding="wte.weight",
        head="lm_head.weight",
        ignored=(r"h\.\d+\.attn\.(?:bias|masked_bias)",),
    )


GPT2 = _gpt2(transposed)
NANOGPT = _gpt2(join)

GPT_NEO = Family(
    rules=(
        *_both("token_embedding", "wte"),
        *_both("position_embedding", "wpe"),
        *_both("blocks.{i}.attention_norm", "h.{i}.ln_1"),
        *_both(
            "blocks.{i}.attention.qkv",
            *("h.{i}.attn.attention." + part for part in ("q_proj", "k_proj", "v_proj")),
        ),
        *_both("blocks.{i}.attention.out", "h.{i}.attn.attention.out_proj"),
        *_both("blocks.{i}.mlp_norm", "h.{i}.ln_2"),
        *_both("blocks.{i}.mlp.up", "h.{i}.mlp.c_fc"),
        *_both("blocks.{i}.mlp.down", "h.{i}.mlp.c_proj"),
        *_both("final_norm", "ln_f"),
        *_both("head", "lm_head"),
    ),
    layer="h.",
    embedding="wte.weight",
    head="lm_head.weight",
    ignored=(r"h\.\d+\.attn\.attention\.(?:bias|masked_bias)",),
)

GPT_NEOX = Family(
    rules=(
        *_both("token_embedding", "embed_in"),
        *_both("blocks.{i}.attention_norm", "layers.{i}.input_layernorm"),
        *_both("blocks.{i}.attention.qkv", "layers.{i}.attention.query_key_value", arrange=heads_apart),
        *_both("blocks.{i}.attention.out", "layers.{i}.attention.dense"),
        *_both("blocks.{i}.mlp_norm", "layers.{i}.post_attention_layernorm"),
        *_both("blocks.{i}.mlp.up", "layers.{i}.mlp.dense_h_to_4h"),
        *_both("blocks.{i}.mlp.down", "layers.{i}.mlp.dense_4h_to_h"),
        *_both("final_norm", "final_layer_norm"),
        *_both("head", "embed_out"),
    ),
    layer="layers.",
    embedding="embed_in.weight",
    head="embed_out.weight",
    head_alias="lm_head.weight",
    ignored=(r"layers\.\d+\.attention\.(?:bias|masked_bias|rotary_emb\.inv_freq)", r"rotary_emb\.inv_freq"),
)


_ATTENTION = "layers.{i}.self_attn."
_QKV = tuple(_ATTENTION + part for part in ("q_proj", "k_proj", "v_proj"))
_NORM_BEFORE_MLP = _both("blocks.{i}.mlp_norm", "layers.{i}.post_attention_layernorm")
_UP = ("layers.{i}.mlp.gate_proj", "layers.{i}.mlp.up_proj")


def _llama(
    norms: tuple[Rule, ...] = _NORM_BEFORE_MLP,
    norm: Arrange = join,
    qkv: tuple[str, ...] = _QKV,
    order: Arrange = join,
    out: str = _ATTENTION + "o_proj",
    up: tuple[str, ...] = _UP,
    down: str = "layers.{i}.mlp.down_proj",
    key_norms: tuple[str, str] = ("q_norm", "k_norm"),
    final: str = "norm",
    experts: tuple[Rule, ...] = (),
    before: str = "layers.{i}.input_layernorm",
) -> Family:
    """Llama's names, and what others call the same."""
    query, key = (_ATTENTION + name for name in key_norms)
    return Family(
        rules=(
            *_both("token_embedding", "embed_tokens"),
            *_both("blocks.{i}.attention_norm", before, arrange=norm),
            *_both("blocks.{i}.attention.qkv", *qkv, arrange=order),
            *_both("blocks.{i}.attention.query_norm", query, arrange=norm),
            *_both("blocks.{i}.attention.key_norm", key, arrange=norm),
            *_both("blocks.{i}.attention.out", out),
            *norms,
            *(experts or (*_both("blocks.{i}.mlp.up", *up), *_both("blocks.{i}.mlp.down", down))),
            *_both("final_norm", final, arrange=norm),
            *_both("head", "lm_head"),
        ),
        layer="layers.",
        embedding="embed_tokens.weight",
        head="lm_head.weight",
        ignored=(r"(?:layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    )


LLAMA = _llama()
# Rotary features paired with their neighbours, as in llama.cpp.
LLAMA_NEIGHBOURS = _llama(order=halves_apart)
GEMMA = _llama(
    norms=_both("blocks.{i}.mlp_norm", "layers.{i}.post_attention_layernorm", arrange=plus_one), norm=plus_one
)
GEMMA2 = _llama(
    norms=(
        *_both("blocks.{i}.attention_post_norm", "layers.{i}.post_attention_layernorm", arrange=plus_one),
        *_both("blocks.{i}.mlp_norm", "layers.{i}.pre_feedforward_layernorm", arrange=plus_one),
        *_both("blocks.{i}.mlp_post_norm", "layers.{i}.post_feedforward_layernorm", arrange=plus_one),
    ),
    norm=plus_one,
)
# OLMo 2 and 3, EXAONE 4: norms after attention and MLP, none before.
NORMS_AFTER = _llama(
    norms=(
        *_both("blocks.{i}.attention_post_norm", "layers.{i}.post_attention_layernorm"),
        *_both("blocks.{i}.mlp_post_norm", "layers.{i}.post_feedforward_layernorm"),
    )
)
PHI3 = _llama(qkv=(_ATTENTION + "qkv_proj",), up=("layers.{i}.mlp.gate_up_proj",))
# Attention and MLP in parallel, from one norm.
_ONE_NORM = _both("blocks.{i}.mlp_norm", "layers.{i}.input_layernorm")
STABLELM_PARALLEL = _llama(norms=_ONE_NORM)
PHI = _llama(
    norms=_ONE_NORM, out=_ATTENTION + "dense", up=("layers.{i}.mlp.fc1",), down="layers.{i}.mlp.fc2",
    key_norms=("q_layernorm", "k_layernorm"), final="final_layernorm",
)  # fmt: skip
# Routed experts: a matrix each (Qwen 3, OLMoE), or all in one tensor (Granite).
LLAMA_EXPERTS = _llama(experts=(
    Rule("blocks.{i}.mlp.router.weight", ("layers.{i}.mlp.gate.weight",)),
    Rule(
        "blocks.{i}.mlp.up.weight",
        ("layers.{i}.mlp.experts.{e}.gate_proj.weight", "layers.{i}.mlp.experts.{e}.up_proj.weight"), gates_and_ups,
    ),
    Rule("blocks.{i}.mlp.down.weight", ("layers.{i}.mlp.experts.{e}.down_proj.weight",), stacked),
))  # fmt: skip
_SPARSE = "layers.{i}.block_sparse_moe."
GRANITE_EXPERTS = _llama(experts=(
    Rule("blocks.{i}.mlp.router.weight", (_SPARSE + "router.layer.weight",)),
    Rule("blocks.{i}.mlp.up.weight", (_SPARSE + "input_linear.weight",), gates_and_ups),
    Rule("blocks.{i}.mlp.down.weight", (_SPARSE + "output_linear.weight",), stacked),
    Rule("blocks.{i}.mlp.shared.up.weight", ("layers.{i}.shared_mlp.input_linear.weight",)),
    Rule("blocks.{i}.mlp.shared.down.weight", ("layers.{i}.shared_mlp.output_linear.weight",)),
))  # fmt: skip
_LFM2 = _llama(
    before="layers.{i}.operator_norm", norms=_both("blocks.{i}.mlp_norm", "layers.{i}.ffn_norm"),
    out=_ATTENTION + "out_proj", up=("layers.{i}.feed_forward.w1", "layers.{i}.feed_forward.w3"),
    down="layers.{i}.feed_forward.w2", key_norms=("q_layernorm", "k_layernorm"), final="embedding_norm",
)  # fmt: skip
LFM2 = replace(_LFM2, rules=(*_LFM2.rules, *_convolution("layers.{i}.conv", "conv")))
HUNYUAN = _llama(key_norms=("query_layernorm", "key_layernorm"))
STARCODER2 = _llama(up=("layers.{i}.mlp.c_fc",), down="layers.{i}.mlp.c_proj")


_APART = ("blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v")
_FUSED = ("blk.{i}.attn_qkv",)
_GATED = ("blk.{i}.ffn_gate", "blk.{i}.ffn_up")
_PLAIN = ("blk.{i}.ffn_up",)


def _gguf(
    qkv: tuple[str, ...] = _APART,
    order: Arrange = join,
    up: tuple[str, ...] = _GATED,
    mlp_norm: str = "blk.{i}.ffn_norm",
    attention_post_norm: str = "blk.{i}.post_attention_norm",
    experts: tuple[Rule, ...] = (),
    final: str = "output_norm",
) -> Family:
    return Family(
        rules=(
            *_both("token_embedding", "token_embd"),
            *_both("position_embedding", "position_embd"),
            *_both("blocks.{i}.attention_norm", "blk.{i}.attn_norm"),
            *_both("blocks.{i}.attention.qkv", *qkv, arrange=order),
            *_both("blocks.{i}.attention.query_norm", "blk.{i}.attn_q_norm"),
            *_both("blocks.{i}.attention.key_norm", "blk.{i}.attn_k_norm"),
            *_both("blocks.{i}.attention.out", "blk.{i}.attn_output"),
            *_both("blocks.{i}.attention_post_norm", attention_post_norm),
            *_both("blocks.{i}.mlp_norm", mlp_norm),
            *(
                experts
                or (*_both("blocks.{i}.mlp.up", *up), *_both("blocks.{i}.mlp.down", "blk.{i}.ffn_down"))
            ),
            *_both("blocks.{i}.mlp_post_norm", "blk.{i}.post_ffw_norm"),
            *_both("final_norm", final),
            *_both("head", "output"),
        ),
        layer="blk.",
        embedding="token_embd.weight",
        head="output.weight",
        # Read as part of the configuration.
        ignored=(r"rope_(?:freqs|factors_short|factors_long)\.weight",),
    )


# By how a file's rotary features are paired: with their neighbours, or half a rotation apart.
GGUF_NEIGHBOURS = _gguf(order=halves_apart)
GGUF_HALVES = _gguf()
GGUF_GPT2 = _gguf(_FUSED, up=_PLAIN)
GGUF_PHI3 = _gguf(_FUSED, up=_PLAIN)
GGUF_STARCODER2 = _gguf(up=_PLAIN)
GGUF_SEED_OSS = _gguf(mlp_norm="blk.{i}.post_attention_norm")
# Attention and MLP in parallel, from one norm.
GGUF_STABLELM_PARALLEL = _gguf(mlp_norm="blk.{i}.attn_norm")
GGUF_PHI2 = _gguf(up=_PLAIN, mlp_norm="blk.{i}.attn_norm")
GGUF_PHI2_FUSED = _gguf(_FUSED, up=_PLAIN, mlp_norm="blk.{i}.attn_norm")

_EXPERTS = (
    Rule("blocks.{i}.mlp.router.weight", ("blk.{i}.ffn_gate_inp.weight",)),
    Rule(
        "blocks.{i}.mlp.up.weight",
        ("blk.{i}.ffn_gate_exps.weight", "blk.{i}.ffn_up_exps.weight"),
        gates_and_ups,
    ),
    Rule("blocks.{i}.mlp.down.weight", ("blk.{i}.ffn_down_exps.weight",), stacked),
    Rule("blocks.{i}.mlp.shared.up.weight", ("blk.{i}.ffn_gate_shexp.weight", "blk.{i}.ffn_up_shexp.weight")),
    Rule("blocks.{i}.mlp.shared.down.weight", ("blk.{i}.ffn_down_shexp.weight",)),
)
GGUF_EXPERTS_HALVES = _gguf(experts=_EXPERTS)
GGUF_EXPERTS_NEIGHBOURS = _gguf(order=halves_apart, experts=_EXPERTS)
_GGUF_LFM2 = _gguf(final="token_embd_norm")
GGUF_LFM2 = replace(_GGUF_LFM2, rules=(*_GGUF_LFM2.rules, *_convolution("blk.{i}.shortconv", "conv")))
