"""Native CPU path of `sample` (native.cpp); logits in half precision become float32."""

import torch
from torch import Tensor

from sprout.kernels import _native


def sample(
    logits: Tensor,
    *,
    temperature: float | Tensor,
    top_p: float | Tensor = 1.0,
    key: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `sprout.kernels.sample`."""
    rows = logits.shape[0]
    token, logprob = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
    parameters = _column(temperature, rows, torch.float32), _column(top_p, rows, torch.float64)
    tensors = (logits.float(), *parameters, key, position, token, logprob)
    _native.sample(*(x.contiguous().numpy() for x in tensors), torch.get_num_threads())
    return token, logprob


def _column(value: float | Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(dtype)
    return torch.full((rows,), value, dtype=dtype)
