"""Triton path of `decode_attention`: positions are cut into splits of fixed size, one program each.

A program takes the query heads of one key head, so their keys are read once, and leaves its sums in a
workspace; a second kernel joins the splits of a row in rising order. The cuts depend on nothing but the
position, so neither do a row's bits. The number of splits comes from the width of the page table: programs
beyond a row's length return at once, and no length has to reach the host.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sprout.kernels.decode_attention.checks import check_ranges
from sprout.kernels.launch import Blocks, Table, choose
from sprout.kernels.triton_softmax import FLOOR, LOG2E, absorb

WORKSPACE_BYTES = 64 * 2**20


def _entry(block_k: int, split: int, warps: int, stages: int) -> Blocks:
    return Blocks({"BLOCK_K": block_k, "SPLIT": split}, warps, stages)


# By head size up to, and bytes of an element. All architectures share the splits, which shape the rounding.
_SM80 = {
    (64, 2): _entry(64, 512, 4, 3),
    (128, 2): _entry(64, 512, 4, 3),
    (256, 2): _entry(32, 512, 4, 3),
    (64, 4): _entry(32, 512, 4, 2),
    (128, 4): _entry(32, 512, 4, 2),
    (256, 4): _entry(16, 512, 4, 2),
}
TABLE: Table = {
    "sm80": _SM80,
    "sm90": {**_SM80, (128, 4): _entry(16, 512, 4, 2)},  # 32 keys spill there
    "interpreter": {(size, width): _entry(64, 128, 4, 1) for size in (64, 128, 256) for width in (2, 4)},
}


def decode_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    sequence: Tensor,
    length: Tensor,
    scale: float,
) -> Tensor:
    """See `sprout.kernels.decode_attention`."""
    if q.device.type == "cpu":
        check_ranges(k_pages, page_table, sequence, length)
    B, Hq, D = q.shape
    if D > 256:
        raise ValueError(f"decode_attention: the Triton kernels take head sizes up to 256, not {D}")
    size = next(bound for bound in (64, 128, 256) if bound >= D)
    blocks = choose(TABLE, q.device, (size, q.itemsize))
    splits = triton.cdiv(page_table.shape[1] * k_pages.shape[1], blocks["SPLIT"])
    out = torch.empty((B, Hq, D), dtype=q.dtype, device=q.device)
    chunk = max(1, WORKSPACE_BYTES // max(1, 4 * Hq * splits * D))
    for start in range(0, B, chunk):
        rows = slice(start, start + chunk)
        _attend(q[rows], k_pages, v_pages, page_table, sequence[rows], length[rows], scale, blocks, out[rows])
    return out


def _attend(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    sequence: Tensor,
    length: Tensor,
    scale: float,
    blocks: Blocks,
    out: Tensor,
) -> None:
    (B, Hq, D), (_, page, Hkv, _) = q.shape, k_pages.shape
    splits = triton.cdiv(page_table.shape[1] * page, blocks["SPLIT"])
    sums = torch.empty((B, Hq, splits, D), dtype=torch.float32, device=q.device)
    statistics = torch.empty((B, Hq, splits, 2), dtype=torch.float32, device=q.device)
    sizes = {"D": D, "BLOCK_D": max(16, triton.next_power_of_2(D))}
    if splits:
        split_kernel[(B * Hkv * splits,)](
            q,
            k_pages,
            v_pages,
            page_table,
            sequence,
            length,
            sums,
            statistics,
            splits,
            Hkv,
            *q.stride(),
            *k_pages.stride(),
            *v_pages.stride(),
            *page_table.stride(),
            sequence.stride(0),
            length.stride(0),
            scale,
            PAGE=page,
            GROUP=Hq // Hkv,
            BLOCK_G=max(16, triton.next_power_of_2(Hq // Hkv)),
            **sizes,
            **blocks.launch(),
        )
    combine_kernel[(B * Hq,)](
        sums, statistics, length, out, splits, Hq, length.stride(0), **sizes, **blocks.launch()
    )


@triton.jit
def split_kernel(
    q,  # [B, Hq, D]
    k_pages,  # [P, PAGE, Hkv, D]
    v_pages,
    page_table,  # [S, max_pages]
    sequence,  # [B]
    length,  # [B]
    sums,  # [B, Hq, splits, D] float32: weighted values, relative to the peak of the split
    statistics,  # [B, Hq, splits, 2] float32: peak and mass
    splits,
    kv_heads,
    q_row,
    q_head,
    q_size,
    k_page,
    k_slot,
    k_head,
    k_size,
    v_page,
    v_slot,
    v_head,
    v_size,
    table_row,
    table_column,
    sequence_stride,
    length_stride,
    scale,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    pid = tl.program_id(0)
    split = pid % splits
    kv_head = (pid // splits % kv_heads).to(tl.int64)
    row = (pid // splits // kv_heads).to(tl.int64)
    begin = split * SPLIT
    end = tl.minimum(tl.load(length + row * length_stride), begin + SPLIT)
    if begin >= end:
        return

    member, size = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D).to(tl.int64)[None, :]
    head = kv_head * GROUP + member
    own = (member < GROUP)[:, None] & (size < D)
    query = tl.load(q + row * q_row + head[:, None] * q_head + size * q_size, mask=own, other=0.0)
    k_pages += kv_head * k_head
    v_pages += kv_head * v_head
    page_table += tl.load(sequence + row * sequence_stride).to(tl.int64) * table_row
    peak = tl.full([BLOCK_G], FLOOR, tl.float32)
    mass = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for first in range(begin, end, BLOCK_K):
        position = first + tl.arange(0, BLOCK_K)
        page = tl.load(page_table + position // PAGE * table_column, mask=position < end, other=0)
        page, slot = page.to(tl.int64)[:, None], (position % PAGE).to(tl.int64)[:, None]
        inside = (position < end)[:, None] & (size < D)
        key = tl.load(k_pages + page * k_page + slot * k_slot + size * k_size, mask=inside, other=0.0)
        value = tl.load(v_pages + page * v_page + slot * v_slot + size * v_size, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * (scale * LOG2E)
        scores = tl.where((position < end)[None, :], scores, float("-inf"))
        acc, mass, peak = absorb(acc, mass, peak, scores, value)

    place = (row * kv_heads * GROUP + head) * splits + split
    tl.store(sums + place[:, None] * D + size, acc, mask=own)
    tl.store(statistics + place * 2, peak, mask=member < GROUP)
    tl.store(statistics + place * 2 + 1, mass, mask=member < GROUP)


@triton.jit
def combine_kernel(
    sums,
    statistics,
    length,
    out,  # [B, Hq, D]
    splits,
    heads,
    length_stride,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    pid = tl.program_id(0).to(tl.int64)
    size = tl.arange(0, BLOCK_D)
    peak = tl.full([1], FLOOR, tl.float32)
    mass = tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    used = tl.cdiv(tl.load(length + pid // heads * length_stride), SPLIT)
    for split in range(0, used):
        place = pid * splits + split
        split_peak, split_mass = tl.load(statistics + place * 2), tl.load(statistics + place * 2 + 1)
        new_peak = tl.maximum(peak, split_peak)
        decay, gain = tl.exp2(peak - new_peak), tl.exp2(split_peak - new_peak)
        mass = mass * decay + split_mass * gain
        acc = acc * decay + tl.load(sums + place * D + size, mask=size < D, other=0.0) * gain
        peak = new_peak
    result = acc / tl.where(mass == 0, 1.0, mass)
    tl.store(out + pid * D + size, result.to(out.dtype.element_ty), mask=size < D)
