"""Specification of `decode_attention`: one row at a time, its pages joined, one softmax."""

import torch
from torch import Tensor

from sprout.kernels.decode_attention.checks import check_ranges


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
    if not q.is_cuda:
        check_ranges(k_pages, page_table, sequence, length)
    page, kv_heads = k_pages.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros_like(q)
    for b, (s, n) in enumerate(zip(sequence.tolist(), length.tolist(), strict=True)):
        if n == 0:
            continue
        used = page_table[s, : -(-n // page)].long()
        k = k_pages[used].flatten(0, 1)[:n].to(wide).repeat_interleave(q.shape[1] // kv_heads, dim=1)
        v = v_pages[used].flatten(0, 1)[:n].to(wide).repeat_interleave(q.shape[1] // kv_heads, dim=1)
        weights = torch.softmax(scale * torch.einsum("hd,nhd->hn", q[b].to(wide), k), dim=1)
        out[b] = torch.einsum("hn,nhd->hd", weights, v).to(q.dtype)
    return out
