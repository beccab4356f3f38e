"""Tree attention by blocks of queries: gather the keys a block sees, then batched matrix products.

Shapes: Hkv key heads, G = Hq / Hkv query heads each, B rows of a block, n keys of a block. Inside, everything
is head-major, with the G query heads of a key head folded into the rows: queries [Hkv, R * G, D], scores
[Hkv, B * G, n]. Sorted rows make every block a slice.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.tree_attention.intervals import Intervals
from sprout.kernels.tree_attention.plan import Block


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
        plan, heads = intervals.plan, k.shape[1]
        queries = _fold(q, heads, plan.order).mul_(scale)
        keys, values = _head_major(k), _head_major(v)
        out, lse = torch.empty_like(queries), queries.new_empty((*queries.shape[:2], 1))
        for block in plan.blocks:
            rows = _rows(block, q.shape[1] // heads)
            _attend(queries[:, rows], keys, values, block, out[:, rows], lse[:, rows])
        out = _unfold(out, q.shape[1], plan.rank)
        ctx.save_for_backward(q, k, v, out, lse)  # wide: grad . out cancels most of grad . value
        ctx.intervals, ctx.scale = intervals, scale
        lse = _unfold(lse, q.shape[1], plan.rank)[..., 0]
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out.to(q.dtype), lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return None, None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        plan, heads = ctx.intervals.plan, k.shape[1]
        queries = _fold(q, heads, plan.order).mul_(ctx.scale)
        keys, values = _head_major(k), _head_major(v)
        grad = _fold(grad_out, heads, plan.order)
        grad_dot_out = _fold(out, heads, plan.order).mul_(grad).sum(-1, keepdim=True)
        lse = lse.masked_fill(lse.isneginf(), 0)
        grad_q, grad_k, grad_v = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        for block in plan.blocks:
            rows = _rows(block, q.shape[1] // heads)
            upstream = (grad[:, rows], grad_dot_out[:, rows], lse[:, rows])
            _attend_backward(
                queries[:, rows], keys, values, block, *upstream, grad_q[:, rows], grad_k, grad_v
            )
        grad_q = _unfold(grad_q.mul_(ctx.scale), q.shape[1], plan.rank).to(q.dtype)
        return grad_q, grad_k.transpose(0, 1).to(k.dtype), grad_v.transpose(0, 1).to(v.dtype), None, None


def _attend(q: Tensor, keys: Tensor, values: Tensor, block: Block, out: Tensor, lse: Tensor) -> None:
    """q, out [Hkv, B * G, D]; keys, values [Hkv, S, D]; lse [Hkv, B * G, 1]."""
    scores = torch.bmm(q, keys.index_select(1, block.keys).transpose(1, 2))
    _hide(scores, block)
    # A finite floor turns the row of a query that sees nothing into zeros instead of NaN.
    floor = torch.finfo(scores.dtype).min
    peak = scores.amax(-1, keepdim=True).clamp_(min=floor) if len(block.keys) else lse.new_full((), floor)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    torch.add(peak, total.log(), out=lse)
    torch.div(torch.bmm(weights, values.index_select(1, block.keys)), total.clamp_(min=1), out=out)


def _attend_backward(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block: Block,
    grad: Tensor,
    grad_dot_out: Tensor,
    lse: Tensor,
    grad_q: Tensor,
    grad_keys: Tensor,
    grad_values: Tensor,
) -> None:
    """d(score) = weight * (grad . value - grad . out); writes grad_q, adds to grad_keys and grad_values."""
    k, v = keys.index_select(1, block.keys), values.index_select(1, block.keys)
    scores = torch.baddbmm(lse, q, k.transpose(1, 2), beta=-1)
    _hide(scores, block)
    weights = scores.exp_()
    grad_values.index_add_(1, block.keys, torch.bmm(weights.transpose(1, 2), grad))
    grad_scores = torch.baddbmm(grad_dot_out, grad, v.transpose(1, 2), beta=-1).mul_(weights)
    grad_keys.index_add_(1, block.keys, torch.bmm(grad_scores.transpose(1, 2), q))
    grad_q.copy_(torch.bmm(grad_scores, k))


def _hide(scores: Tensor, block: Block) -> None:
    """Set scores [Hkv, B * G, n] of invisible keys to -inf."""
    partial = block.bias.shape[-1]
    if partial:
        grouped = scores.unflatten(1, (block.stop - block.start, -1))
        grouped[..., -partial:].add_(block.bias)


def _rows(block: Block, group: int) -> slice:
    return slice(block.start * group, block.stop * group)


def _head_major(x: Tensor) -> Tensor:
    """[S, Hkv, D] -> contiguous [Hkv, S, D] in the computing dtype."""
    return x.transpose(0, 1).to(torch.promote_types(x.dtype, torch.float32)).contiguous()


def _fold(x: Tensor, heads: int, order: Tensor | None) -> Tensor:
    """[R, Hq, D] -> a new [Hkv, R * G, D] in the computing dtype, rows in sorted order."""
    R, Hq, D = x.shape
    group, wide = Hq // heads, torch.promote_types(x.dtype, torch.float32)
    x = x if order is None else x.index_select(0, order)
    folded = torch.empty((heads, R, group, D), dtype=wide, device=x.device)
    return folded.copy_(x.view(R, heads, group, D).transpose(0, 1)).view(heads, R * group, D)


def _unfold(x: Tensor, query_heads: int, rank: Tensor | None) -> Tensor:
    """[Hkv, R * G, D] -> contiguous [R, Hq, D], rows in the caller's order."""
    heads, folded, D = x.shape
    group = query_heads // heads
    R = folded // group
    rows = x.view(heads, R, group, D).transpose(0, 1).reshape(R, query_heads, D)
    return rows if rank is None else rows.index_select(0, rank)
