"""The parts of a training step that replace PyTorch's own must compute the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from edgelm.config import ModelConfig
from edgelm.model import AttentionSpec, Transformer, causal_attention
from edgelm.training import attention, loss
from edgelm.training.attention import blocked_attention
from edgelm.training.config import TrainingConfig
from edgelm.training.loss import Objective, linear_cross_entropy
from edgelm.training.optimizer import Optimizer, rate_share


@pytest.mark.parametrize("window", [0, 1, 5, 40])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 7, 16, 17, 61])
def test_blocks_of_attention_are_attention(
    monkeypatch: pytest.MonkeyPatch, length: int, kv_heads: int, window: int
) -> None:
    monkeypatch.setattr(attention, "_BLOCK", 16)
    torch.manual_seed(length)
    spec = AttentionSpec(layer=0, scale=0.3, window=window)
    shapes = [(2, heads, length, 8) for heads in (4, kv_heads, kv_heads)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    weighting = torch.randn(2, 4, length, 8, dtype=torch.float64)
    results = []
    for attend in (causal_attention, blocked_attention):
        mixed = attend(*inputs, spec)
        results.append((mixed, *torch.autograd.grad((mixed * weighting).sum(), inputs)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_blocks_of_attention_have_dropout() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 2, 40, 8).double()
    value = torch.ones(1, 2, 40, 8).double()
    mixed = blocked_attention(query, key, value, AttentionSpec(layer=0, scale=1.0, dropout=0.5))
    assert 0.8 < mixed.mean() < 1.2 and mixed.std() > 0.1


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)], ids=str)
def test_the_loss_in_parts_is_the_loss(
    monkeypatch: pytest.MonkeyPatch, bias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(loss, "_CPU_LOGITS", 16 * 37)  # 16 rows at a time
    torch.manual_seed(0)
    made = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((50, 8), (37, 8))]
    made += [torch.randn(37).requires_grad_()] if bias else []
    hidden, weight, *rest = made
    targets = torch.randint(37, (50,))
    ours = linear_cross_entropy(hidden, weight, rest[0] if bias else None, targets, 50)
    logits = F.linear(hidden.double(), weight.double(), rest[0].double() if bias else None)
    reference = F.cross_entropy(logits, targets)
    assert ours.item() == pytest.approx(reference.item(), rel=tolerance)
    found, expected = torch.autograd.grad(3 * ours, made), torch.autograd.grad(3 * reference, made)
    for ours_gradient, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(
            ours_gradient,
            gradient,
            rtol=tolerance,
            atol=tolerance * gradient.abs().max().item(),
            check_dtype=False,
        )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_head": False, "head_bias": True},
        {"logit_softcap": 2.0, "attention_softcap": 3.0},
        {"num_kv_heads": 1, "position": "rotary", "sliding_window": 9, "local_layers": (True, False)},
    ],
    ids=str,
)
def test_the_objective_is_the_loss_of_the_model(changes: dict[str, object]) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "context_length": 150, "width": 16, "num_layers": 2, "num_heads": 2}
    model = Transformer(ModelConfig(**{**sizes, **changes})).double()
    ids, targets = torch.randint(50, (2, 2, 140))
    _, expected = model(ids, targets)
    found = Objective(model, blocked_attention)(ids, targets)
    assert expected is not None
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    weights = list(model.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_the_learning_rate_rises_and_falls() -> None:
    config = TrainingConfig(warmup=0.1, final_fraction=0.25)
    rates = [rate_share(step / 100, config) for step in range(101)]
    assert rates[10] == max(rates) == 1.0
    assert rates[0] > 0 and rates[5] == pytest.approx(0.5)
    assert rates[55] == pytest.approx((1.0 + 0.25) / 2)
    assert rates[100] == pytest.approx(0.25)
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rate_share(0.0, TrainingConfig(warmup=0.0, final_fraction=1.0)) == 1.0


def test_the_learning_rate_stays_before_it_falls_in_a_line() -> None:
    config = TrainingConfig(warmup=0.1, cooldown=0.4, decay="linear", final_fraction=0.0)
    rates = [rate_share(step / 100, config) for step in range(101)]
    assert set(rates[10:61]) == {1.0}
    assert rates[60:] == pytest.approx([1 - step / 40 for step in range(41)])
    assert rate_share(1.0, TrainingConfig(cooldown=0.0)) == 1.0


def small_model(**changes: object) -> Transformer:
    sizes = {"vocab_size": 9, "context_length": 4, "width": 8, "num_layers": 1, "num_heads": 2}
    return Transformer(ModelConfig(**{**sizes, "num_kv_heads": 1, "gated_mlp": True, **changes}))


def test_only_matrices_decay() -> None:
    model = small_model()
    groups = Optimizer(model, TrainingConfig(weight_decay=0.3), torch.device("cpu")).adamw.param_groups
    decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, weight in model.named_parameters():
        assert decay[id(weight)] == (0.0 if name.endswith("bias") or "norm" in name else 0.3), name


def test_muon_makes_the_update_of_each_matrix_orthogonal() -> None:
    """Queries, keys, values, gate and up by themselves; everything outside the blocks' matrices is AdamW's."""
    torch.manual_seed(0)
    model = small_model()
    config = TrainingConfig(matrix_rate=0.1, weight_decay=0.0)
    optimizer = Optimizer(model, config, torch.device("cpu"))
    optimizer.set_rates(0.5)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    rows = {"attention.qkv": [8, 4, 4], "attention.out": [8], "mlp.up": [32, 32], "mlp.down": [8]}
    for name, counts in rows.items():
        change = model.get_parameter(f"blocks.0.{name}.weight").detach() - before[f"blocks.0.{name}.weight"]
        for part in change.split(counts):
            # Singular values are near 1, times what makes its size that of an AdamW update; the least come up last.
            values = torch.linalg.svdvals(part) / (0.5 * 0.1 * 0.2 * max(part.shape) ** 0.5)
            assert values.median() > 0.6 and values.max() < 1.3, (name, values)
    embedding = model.token_embedding.weight.detach() - before["token_embedding.weight"]
    assert embedding.abs().max() == pytest.approx(0.5 * config.learning_rate, rel=1e-3)  # AdamW's first step
    assert len(optimizer.adamw.state) + len(rows) == len(list(model.parameters()))
    optimizer.zero_grad()
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"convolution_length": 3, "convolution_layers": (True, False), "position": "rotary"},
        {
            "num_experts": 4,
            "experts_per_token": 2,
            "shared_mlp_width": 12,
            "activation": "silu",
            "mlp_bias": False,
        },
    ],
    ids=str,
)
def test_muon_and_adamw_share_all_weights_of_any_block(changes: dict[str, object]) -> None:
    model = small_model(num_layers=2, **changes)
    optimizer = Optimizer(model, TrainingConfig(matrix_rate=0.1), torch.device("cpu"))
    before = [weight.detach().clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert all((old != new).any() for old, new in zip(before, model.parameters(), strict=True))
    by_adamw = {id(weight) for weight in optimizer.adamw.state}
    for name, weight in model.named_parameters():
        is_matrix = name.startswith("blocks.") and weight.dim() == 2 and "kernel" not in name
        assert (id(weight) in by_adamw) != is_matrix, name
