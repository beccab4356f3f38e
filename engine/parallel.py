"""Ranks of the run: one process by default, `torch.distributed` under torchrun.

The only file that knows ranks. Weights, gradients and optimizer state are sharded (FSDP2); episodes, analyses
and micro-batches are dealt to the ranks and their results gathered, so that every rank goes on with all of
them: what a rank decides never depends on how many there are. Without torchrun each function here is the
one-process answer and costs nothing.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
LOW_PRECISION = (torch.bfloat16, torch.float16)


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


def barrier() -> None:
    """Wait until every rank has come here."""
    if dist.is_initialized():
        dist.barrier()


def share(items: Sequence[Item], work: Callable[[list[Item]], list[Result]]) -> list[Result]:
    """`work` on this rank's part of `items`, dealt round-robin; the results of all, in the order of `items`.

    Every rank must call it with the same items. `work` gives one result per item and calls no collective.
    """
    results = gather(work(list(items[rank() :: world_size()])))
    return [results[index % world_size()][index // world_size()] for index in range(len(items))]


def gather(value: Item) -> list[Item]:
    """Everyone's `value`, by rank, on every rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def deal(sizes: Sequence[int]) -> list[int | None]:
    """Which items this rank takes so that all ranks get about the same total size, largest first.

    All ranks get equally many entries, because whoever works on one calls collectives; None fills up.
    """
    if world_size() == 1:
        return list(range(len(sizes)))
    shares: list[list[int]] = [[] for _ in range(world_size())]
    loads = [0] * world_size()
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        least = loads.index(min(loads))
        shares[least].append(index)
        loads[least] += sizes[index]
    most = max(len(own) for own in shares)
    own = sorted(shares[rank()])
    return [*own, *[None] * (most - len(own))]


def master_dtype(compute: torch.dtype) -> torch.dtype:
    """The precision of sharded weights: float32 where they are computed with in less."""
    return torch.float32 if world_size() > 1 and compute in LOW_PRECISION else compute


def shard_model(model: nn.Module, blocks: Iterable[nn.Module], compute: torch.dtype) -> None:
    """Shard every block's parameters over the ranks of a node, and copy the shards over the nodes (HSDP).

    Weights are gathered in `compute` precision (the model learns it as its `compute_dtype`), gradients summed
    in float32: losses are already divided by counts over all ranks.
    """
    if world_size() == 1:
        return
    model.compute_dtype = compute  # type: ignore[assignment]
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=compute if compute in LOW_PRECISION else None, reduce_dtype=torch.float32
    )
    mesh = _mesh(next(model.parameters()).device.type)
    for block in (*blocks, model):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    for part in _sharded_parts(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Inside the block every rank holds all weights of `model` and may use them without the other ranks."""
    parts = _sharded_parts(model)
    for part in parts:
        part.reshard()
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, sharing its memory; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, as a new tensor on every rank; any other tensor itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def assign(target: Tensor, values: Tensor) -> None:
    """Copy `values`, the same on every rank, into a tensor that may be sharded."""
    if isinstance(target, DTensor):
        values = values.to(target.device, target.dtype)
        values = distribute_tensor(values, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(values)


def sum_over_shards(value: Tensor, of: Sequence[Tensor]) -> Tensor:
    """Sum `value`, computed from this rank's parts of the tensors `of`, over the ranks that share them."""
    sharded = next((tensor for tensor in of if isinstance(tensor, DTensor)), None)
    if sharded is None:
        return value
    group = sharded.device_mesh.get_group(sharded.device_mesh.ndim - 1)
    dist.all_reduce(value, group=group)
    return value


def _sharded_parts(model: nn.Module) -> list[Any]:
    if world_size() == 1:
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _mesh(device: str) -> Any:
    """One dimension on one node; nodes x ranks of a node beyond it."""
    from torch.distributed.device_mesh import init_device_mesh

    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    if per_node == world_size() or world_size() % per_node:
        return init_device_mesh(device, (world_size(),), mesh_dim_names=("shard",))
    shape = (world_size() // per_node, per_node)
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))


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
