"""Triton path of `rotary`: one program turns all query and key heads of a row, in one launch."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.launch import Blocks, Table, choose

# By the largest number of pairs that a row's query heads hold, padded to powers of two.
TABLE: Table = {
    "sm80": {512: Blocks(warps=1), 2048: Blocks(warps=4), 8192: Blocks(warps=8), 32768: Blocks(warps=16)},
    "interpreter": dict.fromkeys((512, 2048, 8192, 32768), Blocks()),
}
MAX_PAIRS = 32768


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q [R, Hq, D], k [R, Hkv, D], cos and sin [R, D/2] -> (q, k) rotated."""
    rotated: tuple[Tensor, Tensor] = _Rotary.apply(q, k, cos, sin)
    return rotated


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(cos, sin)
        ctx.set_materialize_grads(False)
        return _rotate(q, k, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_q: Tensor | None, grad_k: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        cos, sin = ctx.saved_tensors
        return *_rotate(grad_q, grad_k, cos, sin, -1), None, None


def _rotate(
    q: Tensor | None, k: Tensor | None, cos: Tensor, sin: Tensor, direction: int
) -> tuple[Tensor | None, Tensor | None]:
    """q and k (or only one of them) turned by +angle or -angle."""
    inputs = [None if x is None else x if x.stride(-1) == 1 else x.contiguous() for x in (q, k)]
    outputs = [None if x is None else torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in inputs]
    half = triton.next_power_of_2(cos.shape[1])
    heads = [0 if x is None else x.shape[1] for x in inputs]
    blocks = _blocks(triton.next_power_of_2(max(heads)) * half, cos.device)
    strides = [(0, 0) if x is None else x.stride()[:2] for x in inputs]
    _rotary[(cos.shape[0],)](
        inputs[0],
        inputs[1],
        cos.contiguous(),
        sin.contiguous(),
        outputs[0],
        outputs[1],
        *strides[0],
        *strides[1],
        *heads,
        cos.shape[1],
        DIRECTION=direction,
        Q_HEADS=triton.next_power_of_2(heads[0]),
        K_HEADS=triton.next_power_of_2(heads[1]),
        HALF=half,
        **blocks.launch(),
    )
    return outputs[0], outputs[1]


def _blocks(pairs: int, device: torch.device) -> Blocks:
    if pairs > MAX_PAIRS:
        raise ValueError(f"rotary: the Triton kernel takes {MAX_PAIRS} pairs a row at most, not {pairs}")
    return choose(TABLE, device, next(bound for bound in TABLE["sm80"] if bound >= pairs))


@triton.jit
def _rotary(
    q_ptr,  # [R, Hq, D] or None
    k_ptr,  # [R, Hkv, D] or None
    cos_ptr,  # [R, D/2]
    sin_ptr,  # [R, D/2]
    q_out_ptr,  # [R, Hq, D], contiguous
    k_out_ptr,  # [R, Hkv, D], contiguous
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    q_heads,
    k_heads,
    half,
    DIRECTION: tl.constexpr,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + row * half + pair, pair < half, other=0.0).to(tl.float32)
    sin = DIRECTION * tl.load(sin_ptr + row * half + pair, pair < half, other=0.0).to(tl.float32)
    if q_ptr is not None:
        q_ptr += row * q_row_stride
        _turn(q_ptr, q_head_stride, q_out_ptr, row, q_heads, half, cos, sin, Q_HEADS, HALF)
    if k_ptr is not None:
        k_ptr += row * k_row_stride
        _turn(k_ptr, k_head_stride, k_out_ptr, row, k_heads, half, cos, sin, K_HEADS, HALF)


@triton.jit
def _turn(x_ptr, head_stride, out_ptr, row, heads, half, cos, sin, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Rotate the heads of one row."""
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    mask = (head < heads) & (pair < half)
    first_ptr = x_ptr + head.to(tl.int64) * head_stride + pair
    first = tl.load(first_ptr, mask, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + half, mask, other=0.0).to(tl.float32)
    out_ptr += (row * heads + head) * (2 * half) + pair
    tl.store(out_ptr, (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask)
    tl.store(out_ptr + half, (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask)
