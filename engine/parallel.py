"""Ranks of the run: one process by default, `torch.distributed` under torchrun.

The only file that knows ranks. Weights, gradients and optimizer state are sharded (FSDP2); episodes, analyses
and micro-batches are dealt to the ranks and their results gathered, so that every rank goes on with all of
them: what a rank decides never depends on how many there are. Without torchrun each function here is the
one-process answer and costs nothing.

Objects travel over gloo, tensors of a CUDA device over NCCL. What only rank 0 may do, such as writing a file,
is a function under `on_main`.
"""

import atexit
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
LOW_PRECISION = (torch.bfloat16, torch.float16)
TIMEOUT = timedelta(minutes=30)  # that one rank waits for another, whose episodes may be longer
REST_S = 0.5  # before a rank ends; see _rest
FIRST_TO_FAIL = "first to fail"
_store: dist.Store | None = None


class OtherRankError(RuntimeError):
    """Raised where this rank needs what another could not do."""


@contextmanager
def ranks() -> Iterator[None]:
    """Inside the block this process is one of the ranks that torchrun started, if it did.

    When one rank fails, all end. The error of the first to fail leaves the block there, with a note that
    names the rank; the others, which may only miss it, end with a quiet SystemExit.
    """
    _join()
    try:
        yield
    except BaseException as error:
        if isinstance(error, OtherRankError) or not _is_first_to_fail():
            time.sleep(1.0)  # torchrun ends everyone as soon as one is gone: let the first say why
            raise SystemExit(1) from error
        if rank() > 0:
            error.add_note(f"rank {rank()} of {world_size()}")
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            error.add_note("another rank has died or hangs; start again with run.resume=true")
        raise
    barrier()
    shutdown()


def initialize(device: str | None = None) -> torch.device:
    """Join the process group torchrun describes, if any, and return this rank's device.

    `device` is "cpu", "cuda" or "cuda:N"; None takes CUDA where there is one. Under torchrun a plain "cuda"
    becomes the device of the local rank.
    """
    chosen = _device(device)
    _join()
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


def shutdown() -> None:
    """Leave the process group; nothing to do in a single process."""
    if dist.is_initialized():
        _mesh.cache_clear()
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


def on_main(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let rank 0 alone call `function`, which calls no collective; all get its result, or fail with it.

    For what writes a file, for reading one that is about to be written, and for what depends on the clock.
    """

    @wraps(function)
    def agreed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        results = _outcomes(lambda: function(*args, **kwargs) if is_main() else None)
        return results[0]  # type: ignore[return-value]

    return agreed


def share(items: Sequence[Item], work: Callable[[list[Item]], list[Result]]) -> list[Result]:
    """`work` on this rank's part of `items`, dealt round-robin; the results of all, in the order of `items`.

    Every rank must call it with the same items. `work` gives one result per item and calls no collective; if
    it fails on one rank, all raise.
    """
    results = _outcomes(lambda: work(list(items[rank() :: world_size()])))
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


def shard_model(
    model: nn.Module, blocks: Iterable[nn.Module], compute: torch.dtype, offload: bool = False
) -> None:
    """Shard every block's parameters over the ranks of a node, and copy the shards over the nodes (HSDP).

    Weights are gathered in `compute` precision (the model learns it as its `compute_dtype`), gradients summed
    in float32: losses are already divided by counts over all ranks. With `offload` the shards are kept in CPU
    memory.
    """
    if world_size() == 1:
        return
    model.compute_dtype = compute  # type: ignore[assignment]
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    policy = MixedPrecisionPolicy(
        param_dtype=compute if compute in LOW_PRECISION else None, reduce_dtype=torch.float32
    )
    device = next(model.parameters()).device.type
    shards = CPUOffloadPolicy(pin_memory=device == "cuda") if offload else OffloadPolicy()
    mesh = _mesh(device)
    for block in (*blocks, model):
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=shards)
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
        reshard(model)


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


def reshard(model: nn.Module) -> None:
    """Free the whole weights that a forward pass keeps for its backward pass, when none follows.

    Until then `model.named_parameters()` gives those, not the shards.
    """
    for part in _sharded_parts(model):
        part.reshard()


def _sharded_parts(model: nn.Module) -> list[Any]:
    if world_size() == 1:
        return []
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@cache
def _mesh(device: str) -> Any:
    """One dimension on one node; nodes x ranks of a node beyond it."""
    from torch.distributed.device_mesh import init_device_mesh

    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))
    if per_node == world_size() or world_size() % per_node:
        return init_device_mesh(device, (world_size(),), mesh_dim_names=("shard",))
    shape = (world_size() // per_node, per_node)
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))


def _join() -> None:
    global _store
    described = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    if not described or dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    store, index, count = next(dist.rendezvous("env://", timeout=TIMEOUT))
    # torchrun may keep its store over a restart, with what the ranks that died have said there.
    _store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=_store, rank=index, world_size=count, timeout=TIMEOUT)
    atexit.register(_rest)


def _rest() -> None:
    """Before the interpreter ends: let gloo's threads let go of the tensors of the last collectives.

    Each needs the interpreter's lock for that; one that asks for it too late ends the process with SIGABRT.
    """
    time.sleep(REST_S)


def _outcomes(work: Callable[[], Result]) -> list[Result]:
    """Everyone's result of `work`, by rank; if it fails on one rank, all raise."""
    if world_size() == 1:
        return [work()]
    value, failure = None, None
    try:
        value = work()
    except Exception as error:
        _is_first_to_fail()
        failure = error
    outcomes = gather((value, None if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    for index, (_, problem) in enumerate(outcomes):
        if problem is not None:
            raise OtherRankError(f"rank {index} failed: {problem}")
    return [value for value, _ in outcomes]  # type: ignore[misc]


def _is_first_to_fail() -> bool:
    """Whether no other rank has failed; to be asked by a rank that does."""
    if world_size() == 1 or _store is None:
        return True
    try:
        return int(_store.compare_set(FIRST_TO_FAIL, "", str(rank()))) == rank()
    except RuntimeError:  # the store has gone with the rank that held it
        return True


def _device(name: str | None) -> torch.device:
    available = torch.cuda.is_available()
    chosen = torch.device(name or ("cuda" if available else "cpu"))
    if chosen.type == "cuda" and not available:
        raise ValueError(f"device={name}: this machine has no usable CUDA device; set device=cpu")
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", local_rank())
    return chosen
