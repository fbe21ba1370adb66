"""Training throughput against two other ways to train the same model, in one process, step by step in turn.

    python tests/benchmarks/training.py [--rounds 30] [--threads 2] [--size small|nano]

- `edgelm`: a Trainer's step as `edgelm train` makes it, batches, clipping and bookkeeping included; with AdamW, and
  with Muon for the matrices of the blocks.
- `nanoGPT's way`: a GPT-2 in plain PyTorch, written here, trained the way that nanoGPT's train.py does:
  random offsets into a memory map, fused AdamW, clipping, one micro-batch.
- `transformers`: GPT2LMHeadModel with the same optimiser and batches.

All have the same sizes, the same number of weights, the same batch and the same precision. Printed are
medians of tokens per second and the ratio of edgelm to each.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.data.batches import HeldOutWindows, Windows
from edgelm.data.shards import TokenStream
from edgelm.model import Transformer
from edgelm.training.attention import blocked_attention
from edgelm.training.config import RunConfig, TrainingConfig
from edgelm.training.distributed import World
from edgelm.training.loss import Objective
from edgelm.training.material import Material
from edgelm.training.precision import precision_context
from edgelm.training.report import Silent
from edgelm.training.run_folder import RunFolder
from edgelm.training.signals import StopRequest
from edgelm.training.trainer import Trainer

# vocabulary, context, width, layers, heads, batch
SIZES = {
    "nano": (65, 64, 128, 4, 4, 12),  # what nanoGPT's README trains on a CPU
    "small": (4096, 256, 256, 6, 4, 8),
    "wide": (16384, 512, 512, 4, 8, 4),
}
Step = Callable[[], None]


class PlainGPT2(nn.Module):
    """GPT-2 from PyTorch's own parts: LayerNorm, a fused query-key-value matrix, exact GELU, tied head."""

    def __init__(self, vocab: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm_1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "merge": nn.Linear(width, width),
                    "norm_2": nn.LayerNorm(width),
                    "grow": nn.Linear(width, 4 * width),
                    "shrink": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        for part in self.layers:
            split = part["qkv"](part["norm_1"](x)).split(x.shape[-1], dim=2)
            query, key, value = (one.view(batch, length, self.heads, -1).transpose(1, 2) for one in split)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + part["merge"](mixed.transpose(1, 2).contiguous().view(batch, length, -1))
            x = x + part["shrink"](F.gelu(part["grow"](part["norm_2"](x))))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def edgelm_step(
    sizes: tuple[int, ...], tokens: np.memmap, precision: str, out: Path, **settings: Any
) -> tuple[Step, nn.Module]:
    vocab, context, width, layers, heads, batch = sizes
    model = Transformer(
        ModelConfig(
            vocab_size=vocab, context_length=context, width=width, num_layers=layers, num_heads=heads,
            activation="gelu",
        )
    )  # fmt: skip
    config = TrainingConfig(batch_size=batch, steps=10**9, precision=precision, **settings)
    stream = TokenStream([tokens])
    material = Material(Windows(stream, context, seed=0), HeldOutWindows(stream, context), "", {})
    trainer = Trainer(
        Checkpoint(model, None), partial(Objective, attend=blocked_attention), material,
        RunConfig(training=config, model={}), RunFolder(out), World(torch.device("cpu")), Silent(),
    )  # fmt: skip
    trainer.objective.train()
    asked, origin = StopRequest(), time.perf_counter()
    return lambda: trainer.advance(origin, asked) and None, model


def plain_step(model: nn.Module, sizes: tuple[int, ...], tokens: np.memmap, precision: str) -> Step:
    """A step of a usual training loop over `model(ids, targets) -> loss`."""
    _, context, *_, batch = sizes
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    autocast = precision_context(precision, torch.device("cpu"))
    model.train()

    def step() -> None:
        starts = torch.randint(len(tokens) - context, (batch,)).tolist()
        x = torch.stack([torch.from_numpy(tokens[at : at + context].astype(np.int64)) for at in starts])
        y = torch.stack(
            [torch.from_numpy(tokens[at + 1 : at + 1 + context].astype(np.int64)) for at in starts]
        )
        with autocast():
            loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return step


def transformers_model(sizes: tuple[int, ...]) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    vocab, context, width, layers, heads, _ = sizes
    config = GPT2Config(
        vocab_size=vocab, n_positions=context, n_embd=width, n_layer=layers, n_head=heads,
        activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


class HuggingFaceLoss(nn.Module):
    """GPT2LMHeadModel as (ids, targets) -> loss; its own shift of the labels is left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.model(ids).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def compare(size: str, precision: str, rounds: int) -> None:
    sizes = SIZES[size]
    vocab, context, width, layers, heads, batch = sizes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.bin")
        np.random.default_rng(0).integers(0, vocab, 2_000_000).astype("<u2").tofile(path)
        tokens = np.memmap(path, "<u2", "r")
        ours, model = edgelm_step(sizes, tokens, precision, Path(folder))
        plain = PlainGPT2(vocab, context, width, layers, heads)
        other = transformers_model(sizes)
        muon, same = edgelm_step(sizes, tokens, precision, Path(folder), matrix_rate=1e-3)
        models = (model, same, plain, other)
        counts = {sum(weight.numel() for weight in each.parameters()) for each in models}
        assert len(counts) == 1, f"the models differ: {counts}"
        steps = {
            "edgelm": ours,
            "with Muon": muon,
            "nanoGPT's way": plain_step(plain, sizes, tokens, precision),
            "transformers": plain_step(HuggingFaceLoss(other), sizes, tokens, precision),
        }
        seconds = interleaved(steps, rounds)
    print(
        f"\n{size}: {counts.pop():,} weights, batch {batch} x {context} tokens, {precision}, {rounds} rounds"
    )
    for name, times in seconds.items():
        rates = [batch * context / each for each in times]
        ratios = [theirs / mine for theirs, mine in zip(times, seconds["edgelm"], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4)
        print(
            f"  {name:<14} {statistics.median(rates):9,.0f} tokens/s   edgelm is {statistics.median(ratios):.2f} x "
            f"({quartiles[0]:.2f} to {quartiles[2]:.2f})"
        )


def interleaved(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step in every round. The order turns, so that none always follows the same other."""
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 3):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started = time.perf_counter()
            steps[name]()
            if turn >= 3:  # the first rounds warm up
                seconds[name].append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--size", choices=SIZES, action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    print(f"torch {torch.__version__}, {options.threads} threads, {torch.backends.cpu.get_cpu_capability()}")
    for size in options.size or ["nano", "small"]:
        for precision in ("fp32", "bf16"):
            compare(size, precision, options.rounds)


if __name__ == "__main__":
    main()
