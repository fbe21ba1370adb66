"""Families with routed experts (Qwen 3, OLMoE, Granite), and Granite without them."""

from __future__ import annotations

from edgelm.importers.huggingface.llama import Fields, llama
from edgelm.importers.huggingface.windows import window
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Weights


def granite(settings: Settings, weights: Weights, layers: int) -> Fields:
    residual, divisor = settings.number("residual_multiplier"), settings.positive("logits_scaling")
    return llama(settings, weights, layers) | {
        "embedding_scale": settings.number("embedding_multiplier"),
        "attention_scale": settings.positive("attention_multiplier"),
        "factors": {
            "blocks.{i}.attention.out": residual, "blocks.{i}.mlp.down": residual, "final_norm": 1 / divisor,
        },
    }  # fmt: skip


def granite_experts(settings: Settings, weights: Weights, layers: int) -> Fields:
    return granite(settings, weights, layers) | _experts(settings)


def granite_shared(settings: Settings, weights: Weights, layers: int) -> Fields:
    fields = granite_experts(settings, weights, layers)
    if settings.values.get("shared_intermediate_size") not in (None, 0):
        fields["shared_mlp_width"] = settings.whole("shared_intermediate_size")
    fields["factors"]["blocks.{i}.mlp.shared.down"] = fields["factors"]["blocks.{i}.mlp.down"]
    return fields


def qwen3_experts(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(mlp_only_layers=[], decoder_sparse_step=1)  # layers without experts
    window_of_all = window(settings, "sliding_window", [True]) if settings.flag("use_sliding_window") else {}
    return llama(settings, weights, layers) | {
        **window_of_all,
        **_experts(settings),
        "query_key_norm": True,
        "normalize_experts": settings.flag("norm_topk_prob"),
        "mlp_width": settings.whole("moe_intermediate_size"),
    }


def olmoe(settings: Settings, weights: Weights, layers: int) -> Fields:
    settings.require(clip_qkv=None)
    return llama(settings, weights, layers) | {
        **_experts(settings),
        "normalize_experts": settings.flag("norm_topk_prob"),
        "query_key_norm": True,
        "query_key_norm_joint": True,
    }


def _experts(settings: Settings) -> Fields:
    # Both names are in use for the same families.
    count = "num_local_experts" if "num_local_experts" in settings.values else "num_experts"
    return {
        "num_experts": settings.whole(count),
        "experts_per_token": settings.whole("num_experts_per_tok"),
    }
