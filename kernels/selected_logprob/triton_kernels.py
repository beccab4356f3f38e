"""Triton kernels of `selected_logprob`: tiles of logits are formed, used and forgotten.

z = hidden[row] @ weight.T / temperature, in float32. Row and column indices are clamped into range instead of
masked, so tiles that overhang load valid memory; what they compute is masked before it is used.
"""

import triton
import triton.language as tl

# Below every logit and still finite: the first rescaling multiplies empty sums by exp(very negative) = 0.
LOWEST = tl.constexpr(-1.7e38)


@triton.jit
def product(
    left,  # [*, H]
    left_row,  # [BLOCK_L] int64
    left_stride,
    left_step,
    right,  # [*, H]
    right_row,  # [BLOCK_R] int64
    right_stride,
    right_step,
    H: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """left[left_row] @ right[right_row].T: [BLOCK_L, BLOCK_R] in float32."""
    total = tl.zeros([BLOCK_L, BLOCK_R], tl.float32)
    for first in range(0, H, BLOCK_H):
        k = first + tl.arange(0, BLOCK_H).to(tl.int64)
        a = load(
            left + left_row[:, None] * left_stride + k[None, :] * left_step,
            k[None, :] < H,
            H % BLOCK_H == 0,
            INTERPRET,
        )
        b = load(
            right + right_row[None, :] * right_stride + k[:, None] * right_step,
            k[:, None] < H,
            H % BLOCK_H == 0,
            INTERPRET,
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    return total


@triton.jit
def load(pointer, inside, ALL_INSIDE: tl.constexpr, INTERPRET: tl.constexpr):
    """Values where `inside`, else 0; upcast for the interpreter, whose half-precision arithmetic is wrong."""
    value = tl.load(pointer) if ALL_INSIDE else tl.load(pointer, inside, other=0.0)
    if INTERPRET:
        value = value.to(tl.float32)
    return value


@triton.jit
def rounded(value, like, INTERPRET: tl.constexpr):
    """float32 values rounded to the element type of pointer `like`, as operands of the next tl.dot."""
    value = value.to(like.dtype.element_ty)
    if INTERPRET:
        value = value.to(tl.float32)
    return value


@triton.jit
def swizzled(rows, columns, GROUP: tl.constexpr):
    """Block row and column of this program: GROUP block rows at a time share the columns' tiles in L2."""
    program = tl.program_id(0)
    group = program // (GROUP * columns)
    height = tl.minimum(rows - group * GROUP, GROUP)
    inside = program % (GROUP * columns)
    return group * GROUP + inside % height, inside // height


@triton.jit
def forward_kernel(
    hidden,  # [N, H]
    weight,  # [V, H]
    row,  # [M], or -1 for tokens to pass over
    target,  # [M]
    inverse_temperature,  # [M]
    logit,  # [M] z at the target
    peak,  # [chunks, M] largest z of a chunk of the vocabulary
    mass,  # [chunks, M] sum of exp(z - peak)
    moment,  # [chunks, M] sum of exp(z - peak) * (z - peak)
    logits,  # [kept, V] float32: z of the first tokens; or None
    M,
    V,
    kept,
    hidden_stride,
    hidden_step,
    weight_stride,
    weight_step,
    H: tl.constexpr,
    WITH_ENTROPY: tl.constexpr,
    INTERPRET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Statistics of one chunk of the vocabulary for a block of tokens; nothing if all are passed over."""
    block, chunk = swizzled(tl.cdiv(M, BLOCK_M), tl.cdiv(V, CHUNK), GROUP)
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    index = tl.load(row + m, m < M, other=-1)
    if tl.max(index, 0) < 0:
        return
    index = tl.maximum(index, 0)
    wanted = tl.load(target + m, m < M, other=0)
    scale = tl.load(inverse_temperature + m, m < M, other=1.0)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M], tl.float32)
    found = tl.zeros([BLOCK_M], tl.float32)
    stop = tl.minimum(chunk * CHUNK + CHUNK, V)
    for first in range(chunk * CHUNK, stop, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        column = tl.minimum(v, V - 1).to(tl.int64)
        z = product(
            hidden, index, hidden_stride, hidden_step, weight, column, weight_stride, weight_step,
            H, BLOCK_M, BLOCK_V, BLOCK_H, INTERPRET,
        ) * scale[:, None]  # fmt: skip
        if logits is not None:
            place = m.to(tl.int64)[:, None] * V + v[None, :]
            tl.store(logits + place, z, (m < kept)[:, None] & (v < V)[None, :])
        found += tl.sum(tl.where(v[None, :] == wanted[:, None], z, 0.0), 1)
        z = tl.where((v < V)[None, :], z, LOWEST)
        higher = tl.maximum(top, tl.max(z, 1))
        shift = top - higher
        z -= higher[:, None]
        e = tl.exp(z)
        if WITH_ENTROPY:
            weighted = tl.exp(shift) * (weighted + total * shift) + tl.sum(e * z, 1)
        total = tl.exp(shift) * total + tl.sum(e, 1)
        top = higher
    place = chunk.to(tl.int64) * M + m
    tl.store(peak + place, top, m < M)
    tl.store(mass + place, total, m < M)
    if WITH_ENTROPY:
        tl.store(moment + place, weighted, m < M)
    tl.store(logit + m, found, (m < M) & (wanted >= chunk * CHUNK) & (wanted < stop))


@triton.jit
def combine_kernel(
    logit,  # [M]
    peaks,  # [chunks, M]
    masses,  # [chunks, M]
    moments,  # [chunks, M]
    logprob,  # [M]
    peak,  # [M]
    mass,  # [M]
    entropy,  # [M], or None
    M,
    chunks,
    BLOCK_M: tl.constexpr,
):
    """Joins the chunks of the vocabulary in rising order."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M], tl.float32)
    for chunk in range(0, chunks):
        place = tl.cast(chunk, tl.int64) * M + m
        chunk_top = tl.load(peaks + place, m < M, other=0.0)
        chunk_total = tl.load(masses + place, m < M, other=1.0)
        higher = tl.maximum(top, chunk_top)
        shift, chunk_shift = top - higher, chunk_top - higher
        if entropy is not None:
            chunk_weighted = tl.load(moments + place, m < M, other=0.0)
            weighted = tl.exp(shift) * (weighted + total * shift)
            weighted += tl.exp(chunk_shift) * (chunk_weighted + chunk_total * chunk_shift)
        total = tl.exp(shift) * total + tl.exp(chunk_shift) * chunk_total
        top = higher
    log_mass = tl.log(total)
    # In this order the large peak cancels exactly before the small logarithm is subtracted.
    tl.store(logprob + m, (tl.load(logit + m, m < M, other=0.0) - top) - log_mass, m < M)
    tl.store(peak + m, top, m < M)
    tl.store(mass + m, total, m < M)
    if entropy is not None:
        tl.store(entropy + m, log_mass - weighted / total, m < M)
