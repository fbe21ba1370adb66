"""The quantised blocks of a GGUF file under this project's weight names, bit for bit.

An exporter that writes 4- or 8-bit weights need not quantise a second time what came quantised. Rows are
rearranged as in the model (fused matrices, rotary order); blocks run along rows and stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from edgelm.checkpoint import Checkpoint
from edgelm.importers.gguf.file import KINDS, GgufFile
from edgelm.importers.gguf.model import gguf_config
from edgelm.importers.weight_names import halves_apart
from edgelm.importers.weight_rules import join, weight_plan

KEPT = (KINDS.Q4_0, KINDS.Q4_1, KINDS.Q8_0)


@dataclass(frozen=True)
class QuantizedRows:
    """A weight of `kind` Q4_0, Q4_1 or Q8_0: `blocks` is (rows, bytes per row), blocks of 32 features.

    Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. Q4_0: half scale, 16 bytes of
    nibbles (feature i low, i + 16 high), offset 8. Q4_1: half scale, half minimum, 16 bytes of nibbles.
    Q8_0: half scale, 32 signed bytes.
    """

    kind: str
    blocks: NDArray[np.uint8]

    def numbers(self) -> NDArray[np.float32]:
        """The weight, dequantised: (rows, features)."""
        rows: NDArray[np.float32] = gguf.dequantize(self.blocks, gguf.GGMLQuantizationType[self.kind])
        return rows


def quantized_blocks(path: Path) -> dict[str, QuantizedRows]:
    """The blocks of every weight that the file stores in one of those kinds, by the model's weight names.

    A fused weight whose parts are of different kinds is left out. Raises CheckpointError.
    """
    file = GgufFile(path)
    config, family = gguf_config(file)
    found = {}
    for target, (rule, names) in weight_plan(family, config).items():
        tensors = [file.tensors[name] for name in names if name in file.tensors]
        kinds = {tensor.kind for tensor in tensors}
        if (
            len(tensors) == len(names)
            and len(kinds) == 1
            and kinds <= set(KEPT)
            and rule.arrange in (join, halves_apart)
        ):
            stored = [torch.from_numpy(file.blocks(tensor)) for tensor in tensors]
            found[target] = QuantizedRows(tensors[0].kind.name, rule.arrange(stored, config).numpy())
    return found


def kept_blocks(checkpoint: Checkpoint) -> dict[str, QuantizedRows]:
    """The blocks that `checkpoint` still consists of: those of the GGUF file that it was loaded from, for
    each weight that equals them. Empty where it came from elsewhere or the file is gone."""
    path = checkpoint.origin.get("path")
    if checkpoint.origin.get("source") != "GGUF" or not isinstance(path, str) or not Path(path).is_file():
        return {}
    weights: Mapping[str, torch.Tensor] = checkpoint.model.state_dict()
    return {
        name: rows
        for name, rows in quantized_blocks(Path(path)).items()
        if name in weights and torch.equal(torch.from_numpy(rows.numbers()), weights[name])
    }
