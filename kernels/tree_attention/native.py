"""Native CPU path of `tree_attention` (native.cpp), float32 and bfloat16."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels import _native
from sprout.kernels.arrays import array
from sprout.kernels.tree_attention.intervals import Intervals

SERIAL_WORK = 256 * 1024  # multiply-adds below which more threads cost more than they give


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, intervals: Intervals, scale: float
) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k and v [S, Hkv, D] -> out [R, Hq, D], lse [R, Hq]."""
    result: tuple[Tensor, Tensor] = _TreeAttention.apply(q, k, v, intervals, scale)
    return result


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, intervals: Intervals, scale: float
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty(q.shape, dtype=torch.float32)
        lse = torch.empty(q.shape[:2], dtype=torch.float32)
        forest = intervals.ranges.order, intervals.ranges.first, intervals.ranges.last
        tensors = [array(x) for x in (q, k, v)]
        _native.tree_attention_forward(*tensors, *forest, scale, array(out), array(lse), _threads(q, k))
        ctx.save_for_backward(q, k, v, out, lse)  # float32: grad . out cancels most of grad . value
        ctx.forest, ctx.scale = forest, scale
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return None, None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)]
        _native.tree_attention_backward(
            *(array(x) for x in (q, k, v)),
            *ctx.forest,
            ctx.scale,
            *(array(x) for x in (out, lse, grad_out, *grads)),
            _threads(q, k),
        )
        return *grads, None, None


def _threads(q: Tensor, k: Tensor) -> int:
    return torch.get_num_threads() if q.numel() * k.shape[0] > SERIAL_WORK else 1
