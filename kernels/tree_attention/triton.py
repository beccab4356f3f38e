"""Triton path of tree attention: launches of the kernels in `triton_forward.py` and `triton_backward.py`.

Between forward and backward only out and lse [R, Hq] are kept; the mask costs a few integers a block of rows
(`triton_tiles.py`).
"""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.launch import Blocks, Table, choose
from sprout.kernels.tree_attention.intervals import Intervals
from sprout.kernels.tree_attention.triton_backward import grad_key_kernel, grad_query_kernel
from sprout.kernels.tree_attention.triton_forward import forward_kernel
from sprout.kernels.tree_attention.triton_tiles import Tiles


def _entry(block_q: int, block_k: int, warps: int, stages: int, scan: int = 64) -> Blocks:
    return Blocks({"BLOCK_Q": block_q, "BLOCK_K": block_k, "SCAN": scan}, warps, stages)


# By kernel, head size up to, and bytes of an element. Half types compile without spilling registers. float32,
# whose products run outside the tensor cores, is there for checking and may spill.
FLOAT32 = {
    ("forward", 64, 4): _entry(64, 32, 8, 2),
    ("forward", 128, 4): _entry(32, 32, 8, 2),
    ("forward", 256, 4): _entry(16, 16, 8, 1),
    ("grad_query", 64, 4): _entry(32, 32, 8, 1),
    ("grad_query", 128, 4): _entry(32, 16, 8, 1),
    ("grad_query", 256, 4): _entry(16, 16, 8, 1),
    ("grad_key", 64, 4): _entry(32, 32, 8, 1),
    ("grad_key", 128, 4): _entry(16, 32, 8, 1),
    ("grad_key", 256, 4): _entry(16, 16, 8, 1),
}
FILLED = {
    "sm80": {
        ("forward", 64, 2): _entry(128, 64, 8, 3),
        ("forward", 128, 2): _entry(128, 32, 8, 3),
        ("forward", 256, 2): _entry(64, 64, 8, 2),
        ("grad_query", 64, 2): _entry(64, 64, 8, 2),
        ("grad_query", 128, 2): _entry(64, 64, 8, 2),
        ("grad_query", 256, 2): _entry(64, 32, 8, 1),
        ("grad_key", 64, 2): _entry(32, 64, 4, 2),
        ("grad_key", 128, 2): _entry(64, 64, 8, 2),
        ("grad_key", 256, 2): _entry(32, 32, 8, 1),
        **FLOAT32,
    },
    "sm90": {
        ("forward", 64, 2): _entry(128, 64, 8, 3),
        ("forward", 128, 2): _entry(128, 64, 8, 2),
        ("forward", 256, 2): _entry(64, 32, 8, 2),
        ("grad_query", 64, 2): _entry(128, 64, 8, 2),
        ("grad_query", 128, 2): _entry(64, 64, 8, 2),
        ("grad_query", 256, 2): _entry(32, 32, 8, 1),
        ("grad_key", 64, 2): _entry(64, 128, 8, 2),
        ("grad_key", 128, 2): _entry(64, 64, 8, 2),
        ("grad_key", 256, 2): _entry(32, 32, 8, 1),
        **FLOAT32,
    },
    "interpreter": {
        (kernel, size, width): _entry(*shape, warps=4, stages=1, scan=2)
        for kernel, shape in {"forward": (32, 64), "grad_query": (64, 64), "grad_key": (64, 64)}.items()
        for size in (64, 128, 256)
        for width in (2, 4)
    },
}
# Rows that replace those above for multiples of 16 that are padded to a power of two, like 80 and 192:
# pipelined loads with masks take more registers. Loads of other sizes are not pipelined. Keys of TABLE
# end in whether that is so.
PADDED = {
    "sm80": {
        ("forward", 256, 2): _entry(64, 32, 8, 2),
        ("grad_key", 64, 2): _entry(32, 64, 8, 2),
        ("grad_key", 128, 2): _entry(32, 64, 8, 2),
    },
}
TABLE: Table = {
    name: {(*key, False): blocks for key, blocks in rows.items()}
    | {(*key, True): blocks for key, blocks in (rows | PADDED.get(name, {})).items()}
    for name, rows in FILLED.items()
}


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, intervals: Intervals, scale: float
) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k and v [S, Hkv, D] -> out [R, Hq, D], lse [R, Hq]."""
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError("tree_attention: the Triton kernels take q, k and v of one dtype")
    if not 1 <= q.shape[2] <= 256:
        raise ValueError(f"tree_attention: the Triton kernels take head sizes 1 to 256, not {q.shape[2]}")
    result: tuple[Tensor, Tensor] = _TreeAttention.apply(q, k, v, intervals, scale)
    return result


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, intervals: Intervals, scale: float
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        _launch("forward", (q, k, v), intervals, scale, out, lse)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.intervals, ctx.scale = intervals, scale
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return None, None, None, None, None
        q, k, v, out, lse = ctx.saved_tensors
        grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        delta = torch.empty_like(lse)
        inputs = (q, k, v, grad_out)
        _launch("grad_query", inputs, ctx.intervals, ctx.scale, out, lse, delta, grad_q)
        _launch("grad_key", inputs, ctx.intervals, ctx.scale, lse, delta, grad_k, grad_v)
        return grad_q, grad_k, grad_v, None, None


KERNELS: dict[str, Any] = {
    "forward": forward_kernel,
    "grad_query": grad_query_kernel,
    "grad_key": grad_key_kernel,
}


def _launch(
    name: str, inputs: tuple[Tensor, ...], intervals: Intervals, scale: float, *others: Tensor
) -> None:
    """Run one kernel; `inputs` may have any strides, `others` are contiguous."""
    q, k = inputs[:2]
    (R, Hq, D), (S, Hkv, _) = q.shape, k.shape
    size = next(bound for bound in (64, 128, 256) if bound >= D)
    block_d = max(16, triton.next_power_of_2(D))
    padded = block_d > D and D % 16 == 0
    blocks = choose(TABLE, q.device, (name, size, q.itemsize, padded))
    tiles = Tiles.of(intervals, blocks["BLOCK_Q"], blocks["BLOCK_K"])
    spans, heads = (tiles.key_span, Hkv) if name == "grad_key" else (tiles.query_span, Hq)
    if spans.shape[0] * heads == 0:
        return
    KERNELS[name][(spans.shape[0] * heads,)](
        *inputs,
        *others,
        intervals.query_enter.contiguous(),
        intervals.key_enter.contiguous(),
        intervals.key_exit.contiguous(),
        tiles.queries,
        tiles.keys,
        spans,
        R,
        S,
        spans.shape[0],
        Hq,
        *(stride for x in inputs for stride in x.stride()),
        scale,
        GROUP=Hq // Hkv,
        D=D,
        BLOCK_D=block_d,
        **blocks.launch(),
    )
