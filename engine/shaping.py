"""Advantages that know of the teacher: OPID adds Delta to them, RLSD scales them by it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdvantageShaping:
    """A_t = A [(1 - k) + k clip(exp(sign(A) Delta_t), low, high)] + w Delta_t, with Delta of theta_old.

    additive          w of OPID
    multiplicative    k of RLSD, from 0 to 1
    low, high         RLSD's bounds
    """

    additive: float = 0.0
    multiplicative: float = 0.0
    low: float = 0.8
    high: float = 1.2

    @property
    def looks_at_teacher(self) -> bool:
        return self.additive != 0 or self.multiplicative != 0

    def __call__(self, advantage: Tensor, delta: Tensor) -> Tensor:
        """The shaped advantages [M]; `delta` [M] is 0 where a token has no teacher: its advantage stays."""
        k = self.multiplicative
        scale = (1 - k) + k * torch.exp(advantage.sign() * delta).clamp(self.low, self.high)
        return advantage * scale + self.additive * delta
