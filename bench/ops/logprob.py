"""selected_logprob: a sweep over tokens M and vocabulary V, hidden size H.

FLOPs are one GEMM forward and three backward (logits are recomputed); their rate compares with the large GEMM
in the faster of the case's dtype and float32, since operands may be upcast.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from sprout.bench.case import (
    COMPILED,
    EAGER,
    Case,
    Make,
    Program,
    Setting,
    UnavailableError,
    Work,
    compiled,
    cuda_only,
    library,
    ours,
    plain,
    require_compiler,
)
from sprout.kernels import selected_logprob

UPCAST = "torch eager, upcast"
Shape = tuple[int, int, int]
SHAPES: dict[str, tuple[Shape, ...]] = {  # tokens, hidden size, vocabulary
    "quick": ((48, 64, 1000),),
    "cpu": ((256, 896, 32000), (1024, 896, 32000), (256, 896, 151936)),
    "cuda": ((2048, 4096, 131072), (8192, 4096, 131072), (4096, 896, 151936), (8192, 2048, 32000)),
}


def cases(setting: Setting) -> Iterator[Case]:
    for M, H, V in SHAPES[setting.scale]:
        yield case(setting, M, H, V)


def case(setting: Setting, M: int, H: int, V: int) -> Case:
    hidden, weight = setting.random(M, H), setting.random(V, H)
    with torch.no_grad():
        weight.mul_(H**-0.5)
    row, target = torch.arange(M, device=setting.device), setting.integers(V, M)
    gemm, traffic = 2 * M * H * V, (M + V) * H * setting.dtype.itemsize
    return Case(
        op="selected_logprob",
        shape={"tokens": M, "hidden": H, "vocab": V},
        dtype=setting.dtype,
        work={
            "forward": Work(gemm, traffic, "FLOPs 2 M H V"),
            "backward": Work(3 * gemm, 2 * traffic, "FLOPs 6 M H V"),
            "full": Work(4 * gemm, 3 * traffic, "FLOPs 8 M H V"),
        },
        providers=ours(
            "selected_logprob", lambda h, w: selected_logprob(h, w, row, target)[0], hidden, weight
        )
        | peers(setting, hidden, weight, target),
    )


def peers(setting: Setting, hidden: Tensor, weight: Tensor, target: Tensor) -> dict[str, Make]:
    eager = partial(eager_logprob, target)
    return {
        EAGER: plain(eager, hidden, weight),
        UPCAST: plain(partial(upcast_logprob, target), hidden, weight),
        COMPILED: compiled(setting, eager, hidden, weight),
        "cut-cross-entropy": partial(cut_cross_entropy, setting, hidden, weight, target),
        "liger-kernel, fused linear": partial(liger_fused, setting, hidden, weight, target),
        "liger-kernel, scaled": partial(liger_scaled, setting, hidden, weight, target),
    }


def eager_logprob(target: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """What trainers write: logits, log_softmax in fp32, gather."""
    logits = hidden @ weight.T
    return logits.float().log_softmax(dim=1).gather(1, target[:, None])[:, 0]


def upcast_logprob(target: Tensor, hidden: Tensor, weight: Tensor) -> Tensor:
    """The same with fp32 operands: faster where half-precision GEMMs are slow."""
    return eager_logprob(target, hidden.float(), weight.float())


def cut_cross_entropy(setting: Setting, hidden: Tensor, weight: Tensor, target: Tensor) -> Program:
    """Its kernels on CUDA; elsewhere its composition for torch.compile."""
    impl = "cce" if setting.device.type == "cuda" else "torch_compile"
    if impl == "torch_compile":
        require_compiler(setting)
    elif setting.dtype == torch.float32:
        raise UnavailableError("its kernels take half precision only")
    function = library("cut_cross_entropy").linear_cross_entropy
    return Program(lambda h, w: -function(h, w, target, reduction="none", impl=impl), (hidden, weight))


def liger_fused(setting: Setting, hidden: Tensor, weight: Tensor, target: Tensor) -> Program:
    """Its gradient is that of the sum of all log-probs, which it already computes in forward."""
    cuda_only(setting)
    function = library("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    return Program(lambda h, w: -function(h, w, target, reduction="sum"), (hidden, weight))


def liger_scaled(setting: Setting, hidden: Tensor, weight: Tensor, target: Tensor) -> Program:
    cuda_only(setting)
    ops = library("liger_kernel.ops")
    if not hasattr(ops, "LigerFusedLinearScaledCrossEntropyFunction"):
        raise UnavailableError("this version of liger-kernel lacks it")
    apply = ops.LigerFusedLinearScaledCrossEntropyFunction.apply
    return Program(lambda h, w: -apply(h, w, target, 1.0), (hidden, weight))
