"""Plain-torch path of `decode_attention`: online softmax over spans of positions, many rows at once.

Spans have a fixed number of pages and rows enter no reduction, so a row's arithmetic does not change with the
rows around it: spans beyond its length have weight exp(-inf) = 0 and leave its sums as they were, bit by bit.
"""

import torch
from torch import Tensor

from sprout.kernels.decode_attention.checks import check_ranges

SPAN = 256  # positions gathered at a time, rounded down to whole pages
GATHER_BYTES = 16 * 2**20


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
    wide = torch.promote_types(q.dtype, torch.float32)
    page, kv_heads, size = k_pages.shape[1:]
    chunk = max(1, GATHER_BYTES // (max(SPAN, page) * kv_heads * size * wide.itemsize))
    out = torch.empty_like(q)
    for start in range(0, q.shape[0], chunk):
        row = torch.arange(start, min(start + chunk, q.shape[0]), device=q.device)
        # A batch of one matrix takes another GEMM path, whose rounding differs: a lone row gets a twin.
        row = row.expand(2) if len(row) == 1 else row
        query = (scale * q[row].to(wide)).unflatten(1, (kv_heads, -1))
        out[row] = _attend(query, k_pages, v_pages, page_table[sequence[row].long()], length[row]).to(q.dtype)
    return out


def _attend(
    query: Tensor,  # [B, Hkv, G, D], scaled
    k_pages: Tensor,  # [P, page, Hkv, D]
    v_pages: Tensor,
    pages: Tensor,  # [B, max_pages]
    length: Tensor,  # [B]
) -> Tensor:
    page = k_pages.shape[1]
    # Half the lowest number: finite, so the first rescaling multiplies empty sums by exp(very negative) = 0.
    peak = query.new_full((*query.shape[:3], 1), torch.finfo(query.dtype).min / 2)
    mass, out = torch.zeros_like(peak), torch.zeros_like(query)
    longest = pages.shape[1] * page if query.is_cuda else int(length.max())
    step = max(1, SPAN // page)
    for first in range(0, -(-longest // page), step):
        position = torch.arange(first * page, (first + step) * page, device=query.device)
        beyond = (position >= length[:, None])[:, None, None]
        k, v = (_gather(x, pages[:, first : first + step], step).to(query.dtype) for x in (k_pages, v_pages))
        scores = (query @ k.mT).masked_fill(beyond, -torch.inf)
        new_peak = torch.maximum(peak, scores.amax(dim=3, keepdim=True))
        weights = (scores - new_peak).exp()
        decay, peak = (peak - new_peak).exp(), new_peak
        mass = decay * mass + weights.sum(dim=3, keepdim=True)
        out = decay * out + weights @ v.masked_fill(beyond.mT, 0)
    return torch.where(mass == 0, 0, out / mass).flatten(1, 2)


def _gather(cache: Tensor, pages: Tensor, step: int) -> Tensor:
    """Keys or values [B, Hkv, step * page, D]; unused entries of the table may hold anything."""
    padded = torch.nn.functional.pad(pages, (0, step - pages.shape[1])).clamp(0, cache.shape[0] - 1)
    return cache[padded.long()].flatten(1, 2).transpose(1, 2).contiguous()
