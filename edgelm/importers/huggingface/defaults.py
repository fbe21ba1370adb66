"""What transformers takes a field of config.json to be where the file leaves it out, by `model_type`.

Files are saved without the fields that had their default, so that a field that is absent says as much as one that is
there. A test compares every value with the configuration class of transformers. None: follows from other fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]

_LLAMA: Fields = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": None, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "rope_theta": 10_000.0, "head_dim": None, "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip
_WITHOUT_BIAS: Fields = {"attention_bias": None, "mlp_bias": None}
_GEMMA: Fields = {
    **_LLAMA, "num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    "use_bidirectional_attention": None, "mlp_bias": None, "hidden_act": None,
}  # fmt: skip
_QWEN: Fields = {
    **_LLAMA, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "mlp_bias": None,
}  # fmt: skip
_LAYER_NORM: Fields = {"layer_norm_eps": 1e-5, "rms_norm_eps": None, **_WITHOUT_BIAS}
_OLMO: Fields = {**_LLAMA, "rms_norm_eps": 1e-5, "mlp_bias": None}
_FACTORS: Fields = {
    "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0, "logits_scaling": 1.0,
}  # fmt: skip

DEFAULTS: Mapping[str, Fields] = {
    "gpt2": {
        "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False, "tie_word_embeddings": True,
    },
    "gpt_neo": {
        "max_position_embeddings": 2048, "hidden_size": 2048, "num_layers": 24, "num_heads": 16,
        "attention_types": [[["global", "local"], 12]], "intermediate_size": None, "window_size": 256,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64, "intermediate_size": 24576,
        "hidden_act": "gelu", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "rotary_emb_base": 10_000.0,
        "rotary_pct": 0.25, "use_parallel_residual": True, "attention_bias": True, "tie_word_embeddings": False,
    },
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA, **_WITHOUT_BIAS, "intermediate_size": 14336, "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32, "sliding_window": 4096,
    },
    "qwen2": {**_QWEN, "attention_bias": None},
    "qwen3": {**_QWEN, "head_dim": 128},
    "gemma": {
        **_GEMMA, "num_hidden_layers": 28, "hidden_size": 3072, "intermediate_size": 24576,
        "hidden_act": "gelu_pytorch_tanh", "num_attention_heads": 16, "num_key_value_heads": 16,
        "hidden_activation": None, "sliding_window": None,
        "query_pre_attn_scalar": None, "final_logit_softcapping": None, "attn_logit_softcapping": None,
    },
    "gemma2": _GEMMA,
    "gemma3_text": {
        **_GEMMA, "max_position_embeddings": 131072, "final_logit_softcapping": None, "attn_logit_softcapping": None,
        "rope_theta": 1e6, "rope_local_base_freq": 10_000.0, "sliding_window_pattern": 6,
        "use_bidirectional_attention": False,
    },
    "phi3": {
        **_LLAMA, **_WITHOUT_BIAS, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "sliding_window": None,
        "partial_rotary_factor": 1.0,
    },
    "smollm3": {
        **_LLAMA, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "rope_theta": 2_000_000.0, "use_sliding_window": False,
        "sliding_window": None, "no_rope_layers": None, "no_rope_layer_interval": 4, "tie_word_embeddings": True,
    },
    "granite": {**_LLAMA, **_FACTORS},
    "granitemoe": {
        **_LLAMA, **_FACTORS, "num_local_experts": 8, "num_experts_per_tok": 2, "mlp_bias": None,
    },
    "granitemoeshared": {
        **_LLAMA, **_FACTORS, "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 0,
        "mlp_bias": None,
    },
    "olmoe": {
        **_LLAMA, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8,
        "norm_topk_prob": False, "clip_qkv": None, "mlp_bias": None,
    },
    "qwen3_moe": {
        **_LLAMA, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
        "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096, "mlp_bias": None,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": False,
        "decoder_sparse_step": 1, "mlp_only_layers": None,
    },
    "lfm2": {
        "hidden_size": 2560, "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 128_000, "norm_eps": 1e-5, "conv_bias": False,
        "conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "layer_types": None,
        "block_auto_adjust_ff_dim": True, "full_attn_idxs": None,
        "head_dim": None, "block_ff_dim": None, "tie_word_embeddings": True, "rope_theta": 1e6,
    },
    "hunyuan_v1_dense": {**_LLAMA, "rms_norm_eps": 1e-5, "mlp_bias": None},
    # By its own code, https://huggingface.co/openbmb/MiniCPM-2B-sft-bf16/blob/main/configuration_minicpm.py
    "minicpm": {
        **_LLAMA, "scale_emb": 1, "dim_model_base": 1, "scale_depth": 1, "tie_word_embeddings": True, "mlp_bias": None,
    },
    "olmo2": _OLMO,
    "olmo3": {**_OLMO, "sliding_window": 4096, "rope_theta": 500_000.0},
    "exaone4": {
        **_LLAMA, **_WITHOUT_BIAS, "intermediate_size": 16384, "num_key_value_heads": 32, "rms_norm_eps": 1e-5,
        "sliding_window": 4096, "sliding_window_pattern": 4,
    },
    "stablelm": {
        **_LLAMA, **_LAYER_NORM, "hidden_size": 2560, "intermediate_size": 6912, "num_key_value_heads": 32,
        "max_position_embeddings": 4096, "use_qkv_bias": False, "qk_layernorm": False, "use_parallel_residual": False,
        "partial_rotary_factor": 0.25,
    },
    "phi": {
        **_LLAMA, **_LAYER_NORM, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
        "hidden_act": "gelu_new", "qk_layernorm": False, "partial_rotary_factor": 0.5,
    },
    "starcoder2": {
        **_LLAMA, **_WITHOUT_BIAS, "hidden_size": 3072, "intermediate_size": 12288, "num_hidden_layers": 30,
        "num_attention_heads": 24, "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096, "norm_epsilon": 1e-5, "rms_norm_eps": None, "sliding_window": None,
        "use_bias": True, "tie_word_embeddings": True,
    },
    "helium": {
        **_LLAMA, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24, "num_attention_heads": 20,
        "num_key_value_heads": 20, "head_dim": 128, "max_position_embeddings": 4096, "rms_norm_eps": 1e-8,
        "rope_theta": 100_000.0,
    },
    "ernie4_5": {
        **_LLAMA, **_WITHOUT_BIAS, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 18,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "use_bias": False, "tie_word_embeddings": True,
    },
    "seed_oss": {
        **_LLAMA, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 80,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288, "attention_bias": True,
        "attention_out_bias": False,
    },
    "internlm3": {
        **_LLAMA, "intermediate_size": 10240, "num_hidden_layers": 48, "num_key_value_heads": 2, "head_dim": 128,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    },
}  # fmt: skip
