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
    # As NumPy arrays: a tensor's own DLPack export costs several microseconds each.
    floats = [x.detach().numpy() for x in (q, k_pages, v_pages)]
    ids = [x.numpy() for x in (page_table, sequence, length)]
    _native.decode_attention(*floats, *ids, scale, out.numpy(), torch.get_num_threads())
    return out
