"""policy_loss: M tokens, each with five values in and one gradient out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from sprout.bench.case import COMPILED, EAGER, Case, Setting, Work, compiled, ours, plain
from sprout.kernels import PolicyLossCoefficients, policy_loss

TOKENS = {"quick": (256,), "cpu": (4096, 65536), "cuda": (65536, 2**20)}
COEFFICIENTS = PolicyLossCoefficients(opd=0.5)


def cases(setting: Setting) -> Iterator[Case]:
    reference = import_module("sprout.kernels.policy_loss.reference").policy_loss
    for M in TOKENS[setting.scale]:
        logprob = setting.random(M, dtype=torch.float32)
        names = ("old_logprob", "skill_logprob", "advantage", "weight")
        columns = {name: setting.random(M, grad=False, dtype=torch.float32) for name in names}
        eager = partial(loss_of, reference, columns)
        yield Case(
            op="policy_loss",
            shape={"tokens": M},
            dtype=torch.float32,
            work={
                "forward": Work(60 * M, 4 * 5 * M, "bytes 20 M"),
                "backward": Work(20 * M, 4 * 6 * M, "bytes 24 M"),
                "full": Work(80 * M, 4 * 11 * M, "bytes 44 M"),
            },
            providers=ours("policy_loss", partial(loss_of, policy_loss, columns), logprob)
            | {EAGER: plain(eager, logprob), COMPILED: compiled(setting, eager, logprob)},
        )


def loss_of(function: Callable[..., tuple[Tensor, object]], columns: dict[str, Tensor], x: Tensor) -> Tensor:
    """The loss alone, of log-probs `x`."""
    return function(x, **columns, coefficients=COEFFICIENTS)[0]
