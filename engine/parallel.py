"""Ranks of the run: one process by default, `torch.distributed` under torchrun.

The only file that knows ranks. Everything else asks `rank()`, `is_main()`, `shard(items)`, and reduces
through `all_reduce_sum`; without torchrun each of these is the one-process answer and costs nothing.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

Item = TypeVar("Item")


def initialize(device: str | None = None) -> torch.device:
    """Join the process group torchrun describes, if any, and return this rank's device.

    `device` is "cpu", "cuda" or "cuda:N"; None takes CUDA where there is one. Under torchrun a plain "cuda"
    becomes the device of the local rank, and the back end is NCCL on CUDA and gloo on CPU.
    """
    chosen = _device(device)
    if _under_torchrun() and not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def shutdown() -> None:
    """Leave the process group; nothing to do in a single process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Index of this process among all of the run, 0 in a single process."""
    return dist.get_rank() if dist.is_initialized() else 0


def local_rank() -> int:
    """Index of this process on its machine, 0 in a single process."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Number of processes of the run."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """True on the one rank that writes files and talks to the terminal."""
    return rank() == 0


def all_reduce_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum `tensor` over all ranks, in place, and return it. Every rank must call it, with the same shape."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


def barrier() -> None:
    """Wait until every rank has come here."""
    if dist.is_initialized():
        dist.barrier()


def shard(items: Sequence[Item]) -> list[Item]:
    """This rank's items, dealt round-robin: every item goes to exactly one rank, none is repeated.

    Ranks may get unequal numbers (or none), so whoever loops over a shard must not call collectives inside.
    """
    return list(items[rank() :: world_size()])


def _under_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def _device(name: str | None) -> torch.device:
    available = torch.cuda.is_available()
    chosen = torch.device(name or ("cuda" if available else "cpu"))
    if chosen.type == "cuda" and not available:
        raise ValueError(f"device={name}: this machine has no usable CUDA device; set device=cpu")
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", local_rank())
    return chosen
