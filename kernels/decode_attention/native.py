"""Native CPU path of `decode_attention` (native.cpp), float32 and bfloat16."""

import torch
from torch import Tensor

from sprout.kernels import _native
from sprout.kernels.arrays import array


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
    out = torch.empty(q.shape, dtype=q.dtype)
    ids = [x.contiguous().numpy() for x in (page_table, sequence, length)]
    tensors = [array(x) for x in (q, k_pages, v_pages)]
    _native.decode_attention(*tensors, *ids, scale, array(out), torch.get_num_threads())
    return out
