"""Direct preference optimisation (Rafailov et al. 2023): learning from pairs of a chosen and a rejected answer.

The loss of a pair is -log sigmoid(beta * ((c - c0) - (r - r0))), where c and r are the log-probabilities of the two
answers under the model, and c0 and r0 those under the model that the run started from, which are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from edgelm.data.batches import IGNORED, Batch
from edgelm.finetuning.rows import ChatRows
from edgelm.model import Attend, TorchOperators, Transformer


class PreferenceObjective(nn.Module):
    """`objective(ids, targets, reference, count)`: rows 2n and 2n + 1 are the chosen and rejected answer of pair n.

    ids and targets are int64 (2P, T), `reference` (P,) is c0 - r0 of each pair. The sum of losses over `count`.
    """

    def __init__(self, model: Transformer, attend: Attend, beta: float) -> None:
        super().__init__()
        self.model, self.attend, self.beta = model, attend, beta

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor, count: float
    ) -> torch.Tensor:
        chosen, rejected = answer_logprobs(self.model, self.attend, ids, targets).view(-1, 2).unbind(1)
        return -F.logsigmoid(self.beta * (chosen - rejected - reference)).sum() / count


def answer_logprobs(
    model: Transformer, attend: Attend, ids: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """The log-probability (B,) of each row's targets that count, in nats."""
    counted = targets != IGNORED
    logits = model.logits(model.hidden(ids, operators=TorchOperators(attend))[counted]).float()
    losses = F.cross_entropy(logits, targets[counted], reduction="none")
    row = counted.nonzero()[:, 0]
    return torch.zeros(len(ids), device=ids.device).index_add(0, row, -losses)


@torch.no_grad()
def reference_margins(model: Transformer, attend: Attend, rows: ChatRows) -> torch.Tensor:
    """c0 - r0 (P,) of every pair of `rows`, by the model as it is."""
    device = model.token_embedding.weight.device
    margins = []
    for pair in range(len(rows) // 2):
        batch = rows.batch([2 * pair, 2 * pair + 1])
        chosen, rejected = answer_logprobs(model, attend, *batch.to(device)).tolist()
        margins.append(chosen - rejected)
    return torch.tensor(margins)


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows with their reference. Batches by the numbers of pairs."""

    rows: ChatRows
    reference: torch.Tensor

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of the longer row of each pair."""
        return self.rows.lengths().reshape(-1, 2).max(axis=1)

    def count(self, pair: int) -> int:
        """Targets that count in both rows."""
        return self.rows.count(2 * pair) + self.rows.count(2 * pair + 1)

    def batch(self, pairs: Sequence[int]) -> Batch:
        """The pairs of these numbers; the count is that of pairs."""
        ids, targets = self.rows.batch([2 * pair + side for pair in pairs for side in (0, 1)]).inputs
        return Batch((ids, targets, self.reference[list(pairs)]), len(pairs))
