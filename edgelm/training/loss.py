"""The loss of a training step, without ever holding the logits of a whole batch.

Rows of hidden states go through the head a few at a time, and their part of the gradient is computed at
once, while their logits are still in the cache. A batch of 8 x 1024 tokens with GPT-2's vocabulary would
otherwise keep 1.6 GB of logits, several times over. With a vocabulary of 4096 the loss and its gradient
took half of the time (4096 rows of 256 features, bfloat16: 194 to 96 ms), and the loss is exact in
bfloat16 too, since every sum is in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from edgelm.data.batches import IGNORED
from edgelm.model import Attend, TorchOperators, Transformer

# Logits at a time: what fits a processor's cache, and what fills a GPU.
_CPU_LOGITS, _GPU_LOGITS = 1 << 20, 1 << 26


class Objective(nn.Module):
    """`objective(ids, targets, count)`: the cross-entropy in nats of `model`, int64 (B, T) both.

    Summed over the targets other than -100 and divided by `count`, or by their own number; 0 where there are none.
    A module, so that torch.compile and DistributedDataParallel can wrap all that a step computes.
    """

    def __init__(self, model: Transformer, attend: Attend) -> None:
        super().__init__()
        self.model = model
        self.attend = attend

    def forward(self, ids: torch.Tensor, targets: torch.Tensor, count: float = 0.0) -> torch.Tensor:
        hidden = self.model.hidden(ids, operators=TorchOperators(self.attend)).flatten(0, 1)
        targets = targets.flatten()
        count = count or max(int((targets != IGNORED).sum()), 1)
        if self.model.config.logit_softcap:
            logits = self.model.logits(hidden).float()
            return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED) / count
        weight, bias = self.model.head.weight, self.model.head.bias
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight = hidden.to(dtype), weight.to(dtype)
        return linear_cross_entropy(hidden, weight, bias, targets, count)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    count: float,
) -> torch.Tensor:
    """`cross_entropy(linear(hidden, weight, bias), targets, reduction="sum") / count`.

    hidden (N, C), weight (V, C), targets (N); targets of -100 do not count.
    """
    counted = targets != IGNORED
    if not bool(counted.all()):
        hidden, targets = hidden[counted], targets[counted]
    loss: torch.Tensor = _LinearCrossEntropy.apply(
        hidden, weight, bias, targets, count, torch.is_grad_enabled()
    )
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients for a loss of 1 are made in the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        count: float,
        wants_gradients: bool,
    ) -> torch.Tensor:
        vocabulary = len(weight)
        most = _CPU_LOGITS if hidden.device.type == "cpu" else _GPU_LOGITS
        rows = max(most // vocabulary, 16)
        total = torch.zeros((), device=hidden.device)
        hidden_gradients = [hidden[:0]]
        weight_gradient = torch.zeros(weight.shape if wants_gradients else 0, device=weight.device)
        bias_gradient = torch.zeros(vocabulary if wants_gradients else 0, device=weight.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for part, wanted in zip(hidden.split(rows), targets[:, None].split(rows), strict=True):
                logits = (part @ weight.T).float()  # (rows, V)
                if bias is not None:
                    logits += bias
                log_sum = logits.logsumexp(dim=-1, keepdim=True)
                total += (log_sum - logits.gather(1, wanted)).sum()
                if not wants_gradients:
                    continue
                # The gradient of the logits: softmax, less 1 at the token that came.
                gradient = logits.sub_(log_sum).exp_()
                gradient.scatter_add_(1, wanted, torch.full_like(log_sum, -1.0))
                gradient /= count
                if bias is not None:
                    bias_gradient += gradient.sum(dim=0)
                gradient = gradient.to(weight.dtype)
                hidden_gradients.append(gradient @ weight)
                weight_gradient += gradient.T @ part
        ctx.save_for_backward(torch.cat(hidden_gradients), weight_gradient, bias_gradient)
        ctx.has_bias = bias is not None
        return total / count

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        return hidden * scale, weight * scale, bias * scale if ctx.has_bias else None, None, None, None
