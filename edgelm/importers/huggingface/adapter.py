"""A low-rank adapter in PEFT's format, merged into the weights that it was made for.

W becomes W + (alpha / r) B A, or alpha / sqrt(r) with `use_rslora`
(https://huggingface.co/docs/peft/package_reference/lora). What would change the numbers in another way is refused.
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch

from edgelm.importers.files.safe_files import has, inside, read_json
from edgelm.importers.settings import Settings
from edgelm.importers.weight_rules import without_prefixes
from edgelm.model import Stored
from edgelm.model.safetensors_files import safetensors_weights
from edgelm_runtime.errors import CheckpointError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PART = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_USUAL: dict[str, object] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "rank_pattern": {}, "alpha_pattern": {},
    "modules_to_save": None, "trainable_token_indices": None,
}  # fmt: skip


def with_adapter(weights: dict[str, Stored], folder: Path) -> dict[str, Stored]:
    """The weights of a model, by names without wrappers' prefixes, with the adapter in `folder` merged.

    Raises CheckpointError for an adapter that is damaged, of another kind, or made for another model.
    """
    source = str(folder)
    for name in (CONFIG, WEIGHTS):
        if not has(folder, name):
            raise CheckpointError(f"{folder} has no {name}", "give a folder that PEFT saved")
    settings = Settings(read_json(inside(folder, CONFIG)), source)
    settings.require(**_USUAL)
    rank = settings.whole("r")
    scale = settings.number("lora_alpha", 8.0) / (
        math.sqrt(rank) if settings.values.get("use_rslora") else rank
    )
    parts: dict[str, dict[str, Stored]] = {"A": {}, "B": {}}
    for name, stored in safetensors_weights(inside(folder, WEIGHTS)).items():
        match = _PART.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f"{source} holds {name}, which is no part of a low-rank adapter of matrices"
            )
        parts[match[2]][match[1] + ".weight"] = stored
    down, up = (without_prefixes(parts[side], source) for side in ("A", "B"))
    if down.keys() != up.keys() or not down:
        raise CheckpointError(f"{source} does not hold both parts of every adapter", "get the file again")
    turned = bool(settings.values.get("fan_in_fan_out"))
    merged = dict(weights)
    for name in down:
        base = weights.get(name)
        shape = (up[name].shape[0], down[name].shape[1])
        if base is None or base.shape != (shape[::-1] if turned else shape):
            raise CheckpointError(f"{source} adapts {name}, which the model does not have in that shape")
        merged[name] = Stored(base.shape, partial(_sum, base, down[name], up[name], scale, turned))
    return merged


def _sum(base: Stored, down: Stored, up: Stored, scale: float, turned: bool) -> torch.Tensor:
    change: Any = scale * (up.read().float() @ down.read().float())
    return base.read().float() + (change.t() if turned else change)
