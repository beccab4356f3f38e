"""paired_logprob_loss: M student tokens and as many teacher tokens, H hidden size, V vocabulary.

There is no phase for the backward alone: a fused forward that will be differentiated leaves nothing to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from sprout.bench.case import COMPILED, EAGER, Case, Setting, Work, compiled, ours, plain
from sprout.kernels import PolicyLossCoefficients, paired_logprob_loss

Shape = tuple[int, int, int]
SHAPES: dict[str, tuple[Shape, ...]] = {  # tokens, hidden size, vocabulary
    "quick": ((48, 64, 1000),),
    "cpu": ((256, 896, 32000), (768, 256, 4096)),
    "cuda": ((4096, 4096, 131072), (4096, 896, 151936)),
}
COEFFICIENTS = PolicyLossCoefficients(opd=0.5)


def cases(setting: Setting) -> Iterator[Case]:
    reference = import_module("sprout.kernels.paired_logprob_loss.reference").paired_logprob_loss
    for M, H, V in SHAPES[setting.scale]:
        hidden, weight = setting.random(M, H), setting.random(V, H)
        with torch.no_grad():
            weight.mul_(H**-0.5)
        columns = _columns(setting, M, H, V)
        gemm, traffic = 2 * M * H * V, (2 * M + V) * H * setting.dtype.itemsize
        eager = partial(loss_of, reference, columns)
        yield Case(
            op="paired_logprob_loss",
            shape={"tokens": M, "hidden": H, "vocab": V},
            dtype=setting.dtype,
            work={
                "forward": Work(2 * gemm, traffic, "FLOPs 4 M H V"),
                "full": Work(5 * gemm, 3 * traffic, "FLOPs 10 M H V"),
            },
            providers=ours(
                "paired_logprob_loss", partial(loss_of, paired_logprob_loss, columns), hidden, weight
            )
            | {EAGER: plain(eager, hidden, weight), COMPILED: compiled(setting, eager, hidden, weight)},
        )


def loss_of(
    function: Callable[..., tuple[Tensor, Any]], columns: dict[str, Tensor], hidden: Tensor, weight: Tensor
) -> Tensor:
    """The loss alone."""
    return function(hidden, weight, **columns, coefficients=COEFFICIENTS)[0]


def _columns(setting: Setting, M: int, H: int, V: int) -> dict[str, Tensor]:
    row = torch.arange(M, device=setting.device)
    values = {
        name: setting.random(M, grad=False, dtype=torch.float32) for name in ("old_logprob", "advantage")
    }
    return values | {
        "row": row,
        "target": setting.integers(V, M),
        "scored": setting.random(M, H, grad=False),
        "teacher_row": row + M,
        "token_weight": torch.full((M,), 1 / M, device=setting.device),
    }
