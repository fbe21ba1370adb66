"""Data-parallel training under torchrun, with PyTorch's own DistributedDataParallel.

Each process works through its share of the global batch, gradients are averaged, and process 0 alone
writes. A run that torchrun did not start is a world of one process, in which nothing is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from edgelm_runtime.errors import TrainingError

# Process 0 encodes the data while the others wait.
_PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Return when every process has called this."""
        if self.size > 1:
            dist.barrier()

    def shared(self, value: str) -> str:
        """What the process that writes gives as `value`, in every process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each of `values` summed over all processes, in float64 where the device has it."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        summed: list[float] = total.tolist()
        return summed

    def parallel(self, model: nn.Module) -> nn.Module:
        """`model`, with gradients averaged over the processes at the end of a backward pass."""
        return nn.parallel.DistributedDataParallel(model) if self.size > 1 else model


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world that torchrun describes in the environment, or a world of one. Raises TrainingError."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(_device(device, 0))
        return
    rank = int(os.environ["RANK"])
    place = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield World(place, rank, size)
        dist.barrier()  # who leaves first would take down connections that the others still use
    finally:
        dist.destroy_process_group()


def _device(name: str, local_rank: int) -> torch.device:
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if cuda else "mps" if mps else "cpu"
    if (name == "cuda" and not cuda) or (name == "mps" and not mps):
        raise TrainingError(f"PyTorch finds no {name} device", "choose --device auto or cpu")
    if name == "cuda":
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device(name)
