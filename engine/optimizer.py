"""AdamW and Muon over a decoder's weights: fp32 master weights, one global gradient norm, exact state.

Weights in bf16 or fp16 get an fp32 master copy, and their gradients are added up in fp32 as soon as backward
delivers them: an update far below the spacing of bf16 numbers still accumulates, and so do many small
micro-batches. Weights in fp32 or fp64 are their own masters.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sprout.engine import parallel
from sprout.engine.muon import muon_
from sprout.engine.schedule import Schedule
from sprout.kernels.adamw import adamw_


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights move.

    name: "adamw", or "muon": Muon at `muon_lr` for the matrices inside the layers and AdamW at `lr` for
    embeddings, head and vectors. Weight decay is decoupled and spares vectors (norms, biases).
    clip_grad_norm: bound of the global gradient norm; None leaves gradients as they are.
    schedule: multiplies both learning rates; its step counts the updates applied so far.
    """

    name: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip_grad_norm: float | None = 1.0
    muon_lr: float = 0.02
    muon_beta: float = 0.95
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if self.name not in ("adamw", "muon"):
            raise ValueError(f"optimizer {self.name!r} is unknown; use adamw or muon")
        self._require("a finite number >= 0", lambda x: 0 <= x < math.inf, "lr", "muon_lr", "weight_decay")
        self._require("a finite number > 0", lambda x: 0 < x < math.inf, "eps")
        self._require("in [0, 1)", lambda x: 0 <= x < 1, "muon_beta")
        self._require("two numbers in [0, 1)", lambda x: min(x) >= 0 and max(x) < 1, "betas")
        self._require("above 0, or null for no clipping", lambda x: x is None or x > 0, "clip_grad_norm")

    def _require(self, what: str, holds: Callable[[Any], bool], *names: str) -> None:
        for name in names:
            if not holds(getattr(self, name)):
                raise ValueError(f"optimizer {name}={getattr(self, name)} must be {what}")


class Slot:
    """One trained parameter with its master copy and its moments (one for Muon, two for AdamW)."""

    def __init__(self, name: str, parameter: nn.Parameter, muon: bool, compute: torch.dtype) -> None:
        self.name = name
        self.parameter = parameter
        self.low_precision = parameter.dtype in parallel.LOW_PRECISION
        self.stores_master = compute in parallel.LOW_PRECISION
        self.master = parameter.detach().float() if self.low_precision else parameter.detach()
        self.grad32: Tensor | None = None
        moments = ("momentum",) if muon else ("exp_avg", "exp_avg_sq")
        self.moments = {moment: torch.zeros_like(self.master) for moment in moments}

    @property
    def grad(self) -> Tensor | None:
        return self.grad32 if self.low_precision else self.parameter.grad

    @property
    def decays(self) -> bool:
        return self.master.dim() > 1

    def tensors(self) -> dict[str, Tensor]:
        """State by kind, as a checkpoint stores it."""
        return {**({"master": self.master} if self.stores_master else {}), **self.moments}

    def collect_gradient(self, parameter: Tensor) -> None:
        """Hook of backward: move the fresh low-precision gradient into the fp32 sum."""
        assert parameter.grad is not None
        fresh, parameter.grad = parameter.grad.float(), None
        self.grad32 = fresh if self.grad32 is None else self.grad32.add_(fresh)

    def zero_grad(self) -> None:
        self.parameter.grad = self.grad32 = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the master into the model's weight."""
        if self.low_precision:
            self.parameter.copy_(self.master)


class Optimizer:
    """The optimizer of one model; parameters with requires_grad=False are left out.

    A parameter without a gradient keeps its weight and moments in that step. `updates` counts applied steps;
    `non_finite` names the parameters that made the last step impossible.
    Usage: `zero_grad()`, backward passes of all micro-batches, `step()`.
    """

    def __init__(self, model: nn.Module, config: OptimizerConfig) -> None:
        self.config = config
        self.updates = 0
        self.non_finite: tuple[str, ...] = ()
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        compute = getattr(model, "dtype", None)
        self.slots = [Slot(name, p, self._takes_muon(name, p), compute or p.dtype) for name, p in trained]
        if not self.slots:
            raise ValueError("the model has no parameter with requires_grad=True: nothing to optimize")
        for slot in self.slots:
            if slot.low_precision:
                slot.parameter.register_post_accumulate_grad_hook(_collecting(slot))

    @property
    def lr(self) -> float:
        """Learning rate of the coming step (AdamW's)."""
        return self.config.lr * self.config.schedule.factor(self.updates)

    def gradients(self) -> list[Tensor]:
        """Accumulated gradients (fp32 for low-precision weights): what ranks sum before `step`."""
        return [slot.grad for slot in self.slots if slot.grad is not None]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for slot in self.slots:
            slot.zero_grad()

    @torch.no_grad()
    def step(self) -> float:
        """Clip to the global norm and update; returns the norm before clipping.

        With a norm that is not finite nothing changes, neither weights nor moments nor `updates`.
        """
        grad_norm = global_norm(self.gradients())
        self.non_finite = () if math.isfinite(grad_norm) else self._non_finite()
        if math.isfinite(grad_norm):
            bound = self.config.clip_grad_norm
            self._update(1.0 if bound is None else min(1.0, bound / (grad_norm + 1e-6)))
        return grad_norm

    def state_dict(self) -> dict[str, Any]:
        """{"updates": int, "tensors": {"kind.parameter": tensor}}; the tensors are live, not copies."""
        return {"updates": self.updates, "tensors": self.tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state exactly; ValueError when it belongs to other parameters or another method."""
        given: dict[str, Tensor] = state["tensors"]
        self.check_shapes({name: tensor.shape for name, tensor in given.items()})
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(given[name])
        self.restored(state["updates"])

    def tensors(self) -> dict[str, Tensor]:
        """Every state tensor by "kind.parameter", kind being master, exp_avg, exp_avg_sq or momentum."""
        named = ((slot.name, kind, tensor) for slot in self.slots for kind, tensor in slot.tensors().items())
        return {f"{kind}.{name}": tensor for name, kind, tensor in named}

    def check_shapes(self, given: Mapping[str, torch.Size]) -> None:
        """Raise ValueError unless `given` describes the tensors of exactly this optimizer."""
        own = {name: tensor.shape for name, tensor in self.tensors().items()}
        differing = sorted(own.keys() ^ given.keys()) or [n for n in own if own[n] != given[n]]
        if differing:
            raise ValueError(
                f"optimizer state does not fit: {len(differing)} tensors differ, first {differing[0]} "
                f"({_shape(given, differing[0])} stored, {_shape(own, differing[0])} here); "
                "resume with the same model, weight precision and optimizer name"
            )

    def restored(self, updates: int) -> None:
        """Continue after `updates` applied steps, once the tensors of `tensors()` were filled in place."""
        self.updates = updates
        for slot in self.slots:
            slot.publish()

    def _takes_muon(self, name: str, parameter: Tensor) -> bool:
        return self.config.name == "muon" and parameter.dim() == 2 and ".layers." in name

    def _update(self, grad_scale: float) -> None:
        adamw = [slot for slot in self.slots if "exp_avg" in slot.moments]
        self._adamw([slot for slot in adamw if slot.decays], grad_scale, self.config.weight_decay)
        self._adamw([slot for slot in adamw if not slot.decays], grad_scale, 0.0)
        self._muon([slot for slot in self.slots if "momentum" in slot.moments], grad_scale)
        self.restored(self.updates + 1)

    def _adamw(self, slots: list[Slot], grad_scale: float, weight_decay: float) -> None:
        params, grads, (exp_avg, exp_avg_sq) = _columns(slots, "exp_avg", "exp_avg_sq")
        if params:
            adamw_(
                params,
                grads,
                exp_avg,
                exp_avg_sq,
                step=self.updates + 1,
                lr=self.lr,
                betas=self.config.betas,
                eps=self.config.eps,
                weight_decay=weight_decay,
                grad_scale=grad_scale,
            )

    def _muon(self, slots: list[Slot], grad_scale: float) -> None:
        columns = _columns(slots, "momentum", part=parallel.full)
        params, grads, (momentum,) = columns
        muon_(
            params,
            grads,
            momentum,
            lr=self.config.muon_lr * self.config.schedule.factor(self.updates),
            beta=self.config.muon_beta,
            weight_decay=self.config.weight_decay,
            grad_scale=grad_scale,
        )
        # Of sharded matrices the above were copies: orthogonalisation needs whole ones.
        for slot, param, mean in zip([s for s in slots if s.grad is not None], params, momentum, strict=True):
            if param is not slot.master:
                parallel.assign(slot.master, param)
                parallel.assign(slot.moments["momentum"], mean)

    def _non_finite(self) -> tuple[str, ...]:
        own = [
            slot.name
            for slot in self.slots
            if slot.grad is not None and not torch.isfinite(parallel.local(slot.grad)).all()
        ]
        bad = dict.fromkeys(name for names in parallel.gather(own) for name in names)
        return tuple(bad) or ("the global norm, which overflows",)


def _collecting(slot: Slot) -> Callable[[Tensor], None]:
    """Backward hook with a weak hold on its slot: an old optimizer's moments must not stay alive."""
    reference = weakref.ref(slot)

    def hook(parameter: Tensor) -> None:
        if (alive := reference()) is not None:
            alive.collect_gradient(parameter)

    return hook


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer that `config` describes, over the trained parameters of `model`."""
    return Optimizer(model, config)


def global_norm(tensors: list[Tensor]) -> float:
    """Euclidean norm of all tensors taken as one vector; 0.0 for an empty list.

    Norms of single tensors are combined in fp64, so that large models neither overflow nor lose small ones.
    """
    if not tensors:
        return 0.0
    norms = torch.stack([torch.linalg.vector_norm(parallel.local(tensor)).double() for tensor in tensors])
    norm = torch.linalg.vector_norm(norms)
    if parallel.world_size() > 1:
        norm = parallel.sum_over_shards(norm.square(), tensors).sqrt()
    return float(norm)


def _columns(
    slots: list[Slot], *moments: str, part: Callable[[Tensor], Tensor] = parallel.local
) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
    """Masters, gradients and the named moments of the slots that have a gradient; `part` of each."""
    ready = [(slot, slot.grad) for slot in slots if slot.grad is not None]
    return (
        [part(slot.master) for slot, _ in ready],
        [part(grad) for _, grad in ready if grad is not None],
        [[part(slot.moments[moment]) for slot, _ in ready] for moment in moments],
    )


def _shape(shapes: Mapping[str, torch.Size], name: str) -> str:
    return str(tuple(shapes[name])) if name in shapes else "none"
