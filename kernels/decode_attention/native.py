"""Native CPU path of `decode_attention` (native.cpp), float32."""

import torch
from torch import Tensor

from sprout.kernels import _native


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
    tensors = [x.detach().contiguous() for x in (q, k_pages, v_pages, page_table, sequence, length)]
    _native.decode_attention(*tensors, scale, out, torch.get_num_threads())
    return out
