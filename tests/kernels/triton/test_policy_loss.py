"""policy_loss's Triton kernels compiled; their values are tested beside the other backends'."""

from importlib import import_module

import pytest
import torch

from sprout.kernels import PolicyLossCoefficients

kernels = import_module("sprout.kernels.policy_loss.triton")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("everything", [True, False])
def test_compiles(compiled, dtype, everything):
    x = torch.empty(5000, dtype=dtype, device="meta")
    names = ("old_logprob", "ref_logprob", "skill_logprob", "opd_weight", "entropy")
    optional = dict.fromkeys(names, x if everything else None)

    def run():
        kernels.policy_loss(
            x.clone().requires_grad_(),
            advantage=x,
            weight=x.float(),
            coefficients=PolicyLossCoefficients(),
            **optional,
        )[0].backward()

    assert [kernel.name for kernel in compiled(run)] == ["_tokens", "_totals"]
