"""paired_logprob_loss's kernels compiled; their values are tested beside the other backends'."""

from importlib import import_module

import pytest
import torch

from sprout.kernels import PolicyLossCoefficients


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("H", [64, 896, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("M", [2000, pytest.param(8192, marks=pytest.mark.slow)])
def test_compiles(compiled, dtype, H, M):
    kernels = import_module("sprout.kernels.paired_logprob_loss.triton")
    of_model = dict(dtype=dtype, device="meta")
    hidden, weight = torch.empty(8192, H, **of_model), torch.empty(151_936, H, **of_model)
    ids, x = (torch.empty(M, dtype=dtype, device="meta") for dtype in (torch.int64, torch.float32))
    names = [
        kernel.name
        for kernel in compiled(
            lambda: kernels.paired_logprob_loss(
                hidden.requires_grad_(),
                weight.requires_grad_(),
                ids,
                ids,
                scored=torch.empty(4096, H, **of_model),
                teacher_row=ids,
                old_logprob=x,
                advantage=x,
                token_weight=x,
                coefficients=PolicyLossCoefficients(kl=0.01, entropy=0.001, opd=0.01),
                ref_logprob=x,
            )[0].backward()
        )
    ]
    assert "_tokens" in names and ("d_rows_kernel" if H == 64 else "d_logits_kernel") in names
