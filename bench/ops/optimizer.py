"""adamw_: n fp32 weights in many tensors; four reads and three writes of each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from sprout.bench.case import COMPILED, EAGER, Case, Program, Setting, Work, compiled, ours
from sprout.kernels import adamw_

LAYERS = {"quick": (1,), "cpu": (1, 10), "cuda": (2, 8)}
LAYER: dict[str, tuple[tuple[int, ...], ...]] = {
    "quick": ((64, 32), (64,)),
    "cpu": ((576, 960), (576, 576), (1536, 576), (1536, 576), (576, 1536), (576,), (576,)),
    "cuda": ((2048, 2560), (2048, 2048), (8192, 2048), (8192, 2048), (2048, 8192), (2048,), (2048,)),
}
BYTES_PER_WEIGHT = 28
SETTINGS = {"lr": 1e-5, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def cases(setting: Setting) -> Iterator[Case]:
    for layers in LAYERS[setting.scale]:
        yield case(setting, list(LAYER[setting.scale]) * layers)


def case(setting: Setting, shapes: list[tuple[int, ...]]) -> Case:
    groups = [[setting.random(*s, grad=False, dtype=torch.float32) for s in shapes] for _ in range(2)]
    groups += [[torch.zeros_like(x) for x in groups[0]] for _ in range(2)]
    n = sum(x.numel() for x in groups[0])
    inputs = [x for group in groups for x in group]
    return Case(
        op="adamw_",
        shape={"weights": n, "tensors": len(shapes)},
        dtype=torch.float32,
        work={"forward": Work(15 * n, BYTES_PER_WEIGHT * n, "bytes 28 n")},
        providers=ours("adamw_", step, *inputs)
        | {
            EAGER: partial(torch_adamw, groups, foreach=False),
            "torch foreach": partial(torch_adamw, groups, foreach=True),
            "torch fused": partial(torch_adamw, groups, fused=True),
            COMPILED: partial(compiled_adamw, setting, groups),
        },
    )


def step(*tensors: Tensor) -> None:
    """One step on weights, gradients and both moments, given one list after the other."""
    n = len(tensors) // 4
    params, grads, mean, square = (tensors[i : i + n] for i in range(0, 4 * n, n))
    adamw_(params, grads, mean, square, step=10, **SETTINGS)


def torch_adamw(groups: list[list[Tensor]], **kind: bool) -> Program:
    """torch.optim.AdamW on its own copy of the weights."""
    params = [x.clone().requires_grad_() for x in groups[0]]
    for param, grad in zip(params, groups[1], strict=True):
        param.grad = grad
    return Program(torch.optim.AdamW(params, **SETTINGS, **kind).step, ())  # type: ignore[arg-type]


def compiled_adamw(setting: Setting, groups: list[list[Tensor]]) -> Program:
    return compiled(setting, torch_adamw(groups, foreach=False).function)()
