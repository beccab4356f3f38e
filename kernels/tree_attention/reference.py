"""Tree attention with the whole [R, S] mask, as plain differentiable torch: the specification."""

import math

import torch
from torch import Tensor

from sprout.kernels.tree_attention.intervals import Intervals


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, intervals: Intervals, scale: float
) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k and v [S, Hkv, D] -> out [R, Hq, D], lse [R, Hq]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    keys, values = (x.to(wide).repeat_interleave(group, dim=1) for x in (k, v))
    visible = intervals.visible()[None]
    scores = torch.einsum("rhd,shd->hrs", q.to(wide), keys) * scale
    lse = scores.masked_fill(~visible, -math.inf).logsumexp(-1, keepdim=True)
    weights = torch.where(visible, scores - lse, -math.inf).exp()
    out = torch.einsum("hrs,shd->rhd", weights, values)
    return out.to(q.dtype), lse.detach()[..., 0].T
