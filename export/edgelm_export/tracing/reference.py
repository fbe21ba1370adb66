"""PyTorch's answers, which parity compares a graph with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from edgelm.model import StoredModel, TorchOperators
from edgelm_export.checks.golden import NextLogits
from edgelm_export.checks.parity import Answer
from edgelm_export.progress import Progress, Report, quiet
from edgelm_runtime.arrays import Floats, Ids


def torch_answer(model: StoredModel, vocab_size: int, report: Report = quiet) -> Answer:
    """PyTorch's logits of `model`, cut to `vocab_size`.

    All rows go through a layer, each by itself, before the next layer is read.
    """

    @torch.no_grad()
    def answer(rows: Sequence[tuple[Ids, Ids]]) -> list[Floats]:
        skeleton, operators = model.skeleton(), TorchOperators()
        progress = Progress(report, "PyTorch", model.config.num_layers)
        with model.loaded(skeleton, "token_embedding.", "position_embedding."):
            states = [skeleton.embed(torch.from_numpy(ids)[None]) for ids, _ in rows]
        for layer, turn in enumerate(skeleton.rotations_by_layer()):
            with model.loaded(skeleton, f"blocks.{layer}."):
                states = [skeleton.blocks[layer](x, turn, operators) for x in states]
            progress.step()
        with model.loaded(skeleton, "final_norm.", "head."):
            wanted = [skeleton.final_norm(x)[0, at] for x, (_, at) in zip(states, rows, strict=True)]
            return [skeleton.logits(x)[:, :vocab_size].numpy() for x in wanted]

    return answer


def torch_next(answer: Answer) -> NextLogits:
    """The logits that follow each of some rows, by `answer`."""

    def following(rows: Sequence[Ids]) -> list[Floats]:
        return [logits[0] for logits in answer([(row, np.array([len(row) - 1])) for row in rows])]

    return following
