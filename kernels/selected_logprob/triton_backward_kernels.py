"""Triton kernels of `selected_logprob`'s backward. Every result has one writer and one order of summation.

Shared arguments: rows [M, H] are the tokens' hidden rows, gathered, with zeros where there is no upstream
gradient; `tokens` [4 or 5, M] is `Upstream.packed`; `unscale` [1] undoes the power of two in the slopes.
"""

import triton
import triton.language as tl

from sprout.kernels.selected_logprob.triton_kernels import load, product, rounded, swizzled


@triton.jit
def load_upstream(tokens, m, M, WITH_ENTROPY: tl.constexpr):
    """1 / temperature, peak, slope, constant and entropy slope of tokens `m`; slopes are 0 beyond M."""
    scale = tl.load(tokens + m, m < M, other=1.0)
    peak = tl.load(tokens + M + m, m < M, other=0.0)
    slope = tl.load(tokens + 2 * M + m, m < M, other=0.0)
    constant = tl.load(tokens + 3 * M + m, m < M, other=0.0)
    entropy_slope = tl.zeros_like(slope)
    if WITH_ENTROPY:
        entropy_slope = tl.load(tokens + 4 * M + m, m < M, other=0.0)
    return scale, peak, slope, constant, entropy_slope


@triton.jit
def d_logits(z, hit, inside, peak, slope, constant, entropy_slope, WITH_ENTROPY: tl.constexpr):
    """Gradient of the GEMM's output; exactly 0 outside, and for tokens without an upstream gradient."""
    z = z - peak
    factor = constant
    if WITH_ENTROPY:
        factor = constant + entropy_slope * z
    gradient = -tl.exp(z) * factor
    gradient = tl.where(hit, gradient + slope, gradient)
    return tl.where(inside & ((slope != 0) | (entropy_slope != 0)), gradient, 0.0)


@triton.jit
def d_logits_kernel(
    rows,
    weight,  # [V, H]
    logits,  # [M, V] float32 kept by the forward, or None: form them again
    target,  # [M]
    tokens,
    out,  # [M, out_stride]: columns start .. start + width of d(logits)
    M,
    V,
    start,
    width,
    out_stride,
    weight_stride,
    weight_step,
    H: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    INTERPRET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    GROUP: tl.constexpr,
):
    block, tile = swizzled(tl.cdiv(M, BLOCK_M), tl.cdiv(width, BLOCK_V), GROUP)
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    token = tl.minimum(m, M - 1).to(tl.int64)
    column = (start + tl.minimum(v, width - 1)).to(tl.int64)
    scale, peak, slope, constant, entropy_slope = load_upstream(tokens, m, M, WITH_ENTROPY)
    if logits is not None:
        z = tl.load(logits + token[:, None] * V + column[None, :])
    else:
        z = product(
            rows, token, H, 1, weight, column, weight_stride, weight_step,
            H, BLOCK_M, BLOCK_V, BLOCK_H, INTERPRET,
        ) * scale[:, None]  # fmt: skip
    hit = column[None, :] == tl.load(target + m, m < M, other=0)[:, None]
    inside = (m < M)[:, None] & (v < width)[None, :]
    gradient = d_logits(
        z, hit, inside, peak[:, None], slope[:, None], constant[:, None], entropy_slope[:, None], WITH_ENTROPY
    )
    place = m.to(tl.int64)[:, None] * out_stride + v[None, :]
    tl.store(out + place, gradient.to(out.dtype.element_ty), inside)


@triton.jit
def d_rows_kernel(
    rows,
    weight,  # [V, H]
    target,  # [M]
    tokens,
    out,  # [M, H] float32, scaled like the slopes
    M,
    V,
    weight_stride,
    weight_step,
    H: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    INTERPRET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    OUT: tl.constexpr,
):
    """d(logits) @ weight: a program forms all logits of its tokens and OUT columns of the result."""
    m = tl.program_id(0) // tl.cdiv(H, OUT) * BLOCK_M + tl.arange(0, BLOCK_M)
    h = tl.program_id(0) % tl.cdiv(H, OUT) * OUT + tl.arange(0, OUT).to(tl.int64)
    token = tl.minimum(m, M - 1).to(tl.int64)
    wanted = tl.load(target + m, m < M, other=0)
    scale, peak, slope, constant, entropy_slope = load_upstream(tokens, m, M, WITH_ENTROPY)
    total = tl.zeros([BLOCK_M, OUT], tl.float32)
    for first in range(0, V, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        column = tl.minimum(v, V - 1).to(tl.int64)
        z = product(
            rows, token, H, 1, weight, column, weight_stride, weight_step,
            H, BLOCK_M, BLOCK_V, BLOCK_H, INTERPRET,
        ) * scale[:, None]  # fmt: skip
        gradient = d_logits(
            z, v[None, :] == wanted[:, None], (v < V)[None, :],
            peak[:, None], slope[:, None], constant[:, None], entropy_slope[:, None], WITH_ENTROPY,
        )  # fmt: skip
        place = column[:, None] * weight_stride + h[None, :] * weight_step
        columns = load(weight + place, h[None, :] < H, H % OUT == 0, INTERPRET)
        total = tl.dot(rounded(gradient, weight, INTERPRET), columns, total, input_precision="ieee")
    tl.store(out + token[:, None] * H + h[None, :], total, (m < M)[:, None] & (h < H)[None, :])


@triton.jit
def d_weight_kernel(
    rows,
    weight,  # [V, H]
    target,  # [M]
    tokens,
    unscale,
    out,  # [V, H]
    M,
    V,
    weight_stride,
    weight_step,
    H: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    INTERPRET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    OUT: tl.constexpr,
):
    """d(logits).T @ rows: a program forms all logits of its vocabulary entries, OUT columns of the result."""
    v = tl.program_id(0) // tl.cdiv(H, OUT) * BLOCK_V + tl.arange(0, BLOCK_V)
    h = tl.program_id(0) % tl.cdiv(H, OUT) * OUT + tl.arange(0, OUT)
    column = tl.minimum(v, V - 1).to(tl.int64)
    total = tl.zeros([BLOCK_V, OUT], tl.float32)
    for first in range(0, M, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        token = tl.minimum(m, M - 1).to(tl.int64)
        wanted = tl.load(target + m, m < M, other=0)
        scale, peak, slope, constant, entropy_slope = load_upstream(tokens, m, M, WITH_ENTROPY)
        z = product(
            weight, column, weight_stride, weight_step, rows, token, H, 1,
            H, BLOCK_V, BLOCK_M, BLOCK_H, INTERPRET,
        ) * scale[None, :]  # fmt: skip
        gradient = d_logits(
            z, v[:, None] == wanted[None, :], (m < M)[None, :],
            peak[None, :], slope[None, :], constant[None, :], entropy_slope[None, :], WITH_ENTROPY,
        )  # fmt: skip
        operand = load(rows + token[:, None] * H + h[None, :], h[None, :] < H, H % OUT == 0, INTERPRET)
        total = tl.dot(rounded(gradient, weight, INTERPRET), operand, total, input_precision="ieee")
    total *= tl.load(unscale)
    place = v.to(tl.int64)[:, None] * H + h[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), (v < V)[:, None] & (h < H)[None, :])


@triton.jit
def sum_rows_kernel(
    d_rows,  # [M, H] float32
    order,  # [M] tokens, those of one hidden row next to each other
    bounds,  # [N + 1] where each hidden row's tokens start in `order`
    unscale,
    out,  # [N, H]
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Sum of the gradients of each hidden row's tokens, in rising order of tokens; 0 where it has none."""
    n = (tl.program_id(0) // tl.cdiv(H, BLOCK_H)).to(tl.int64)
    h = tl.program_id(0) % tl.cdiv(H, BLOCK_H) * BLOCK_H + tl.arange(0, BLOCK_H)
    total = tl.zeros([BLOCK_H], tl.float32)
    for i in range(tl.load(bounds + n), tl.load(bounds + n + 1)):
        total += tl.load(d_rows + tl.load(order + i) * H + h, h < H, other=0.0)
    total *= tl.load(unscale)
    tl.store(out + n * H + h, total.to(out.dtype.element_ty), h < H)
