"""Hugging Face's config.json as a `ModelConfig`, by the reader of its `model_type` (families.py).

Fields that the file leaves out have the default of transformers (defaults.py). Which biases there are follows from
the tensors, since flags differ between families and versions; a flag that promises some which are not there is an
error. Settings that would change the numbers and that the `Transformer` does not have are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelm.config import ModelConfig
from edgelm.importers.huggingface.defaults import DEFAULTS
from edgelm.importers.huggingface.families import FAMILIES, LAYERS
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import Family, Weights
from edgelm_runtime.errors import CheckpointError

TIED = ("tie_word_embeddings", "tie_embedding")  # the later of which is LFM2's


def family_of(values: Mapping[str, Any], source: str) -> Family:
    """The weight names that config.json's `model_type` stands for. Raises CheckpointError for others."""
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise CheckpointError(
            f"{source}: model_type {kind!r} cannot be imported", f"known are {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[kind][0]


def read_config(values: Mapping[str, Any], weights: Weights, source: str) -> tuple[ModelConfig, Family]:
    """The architecture that config.json and the tensors describe, and the weight names that go with it.

    Raises CheckpointError or ConfigError.
    """
    family, reader = family_of(values, source), FAMILIES[values["model_type"]][1]
    if quantised := values.get("quantization_config"):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise CheckpointError(f"{source} is quantised ({method})", "give the unquantised weights")
    settings = Settings({**DEFAULTS[values["model_type"]], **values}, source)
    rows = family.rows(weights, source)
    layers = family.layers(weights)
    said = settings.whole(next(name for name in LAYERS if name in settings.values))
    if said != layers:
        raise CheckpointError(
            f"{source}: config.json speaks of {said} layers, the weights of {layers}", "get the files again"
        )
    fields = reader(settings, weights, layers)
    family = fields.pop("names", family)
    for name, factor in fields.pop("factors", {}).items():
        family = family.scaled(name, factor)
    if fields.get("sliding_window", 0) >= fields["context_length"] and "local_rope_theta" not in fields:
        del fields["sliding_window"], fields["local_layers"]  # a window over everything is none
    _check_biases(settings, fields)
    tied = family.tied(weights, settings.flag(TIED[1] if TIED[1] in values else TIED[0]))
    return ModelConfig(vocab_size=rows, num_layers=layers, tied_head=tied, **fields), family


def _check_biases(settings: Settings, fields: Mapping[str, Any]) -> None:
    """Raise CheckpointError where a flag promises biases that no tensor holds."""
    for flag, name in (
        ("attention_bias", "qkv_bias"),
        ("use_qkv_bias", "qkv_bias"),
        ("mlp_bias", "mlp_bias"),
    ):
        if settings.flag(flag) and fields.get(name) is False:
            raise CheckpointError(
                f"{settings.source}: {flag} is true, and the weights have no such biases",
                "get the files again",
            )
