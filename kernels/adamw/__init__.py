"""AdamW on a list of master weights, in place.

Idea: the step is elementwise over four tensors per parameter and bound by memory, so it must be one pass:
per float32 element 16 bytes are read (12 + 2 with bfloat16 gradients) and 12 written, for about 15 FLOPs.
Eager torch needs a dozen passes. A model has hundreds of parameters, many of them tiny, so launches cost too.

Triton: one launch for up to 256 parameters of one gradient dtype. A table of addresses, sizes and first
blocks is built on the host in pinned memory and copied asynchronously; a program finds its parameter by
counting the first blocks at or below its own number. Nothing waits for the GPU. Whole blocks of aligned
tensors move 16 bytes a thread; only a parameter's last block is masked. Offsets are 64-bit.

Numerics: master weights and moments in float32, gradients widened as they are read; the scalars (bias
corrections, 1 - beta) are worked out in double precision on the host. No reduction, hence no order to fix.
Compiled for sm_80 and sm_90 without spills. Measured so far on CPUs only.

CPU (`native`): all tensors are cut into blocks of 8,192 elements, one parallel loop over the blocks, no
allocation; the same bits whatever the number of threads. Measured on one Zen 1 core (AVX2), 8 Mi elements:
17.0 GB/s, 1.58 of a large torch copy (10.8 GB/s, whose writes also read their lines). torch's fused kernel:
14.9 GB/s, and 6.2 GB/s with bfloat16 gradients.
"""

from collections.abc import Sequence

from torch import Tensor

from sprout.kernels.dispatch import resolve


def adamw_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    grad_scale: float = 1.0,
) -> None:
    """One AdamW step (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) on every tensor of the lists.

    Weight decay is decoupled, both moments are bias-corrected, and the result is torch.optim.AdamW's.
    Arithmetic is in the parameter's dtype, whatever the gradient's. Gradients are read, never written.

    Args:
        params: master weights, all float32 or all float64, contiguous; changed in place.
        grads: one per parameter, same shape, any floating dtype.
        exp_avg, exp_avg_sq: running mean of the gradient and of its square, like params; changed in place.
        step: number of this step, from 1.
        betas: decay of exp_avg and of exp_avg_sq per step.
        eps: added to the root of the corrected second moment.
        weight_decay: each weight first shrinks by lr * weight_decay of itself.
        grad_scale: multiplies every gradient, for clipping by norm.

    Raises:
        ValueError: lists that do not match, a master weight that is not contiguous float32 or float64, or
            step < 1.
    """
    if step < 1:
        raise ValueError(f"adamw_: step counts from 1, not {step}")
    if not len(params) == len(grads) == len(exp_avg) == len(exp_avg_sq):
        lengths = len(params), len(grads), len(exp_avg), len(exp_avg_sq)
        raise ValueError(f"adamw_: lists of params, grads, exp_avg and exp_avg_sq have lengths {lengths}")
    for index, tensors in enumerate(zip(params, grads, exp_avg, exp_avg_sq, strict=True)):
        _check(index, *tensors)
    if len({param.dtype for param in params}) > 1:
        raise ValueError("adamw_: parameters must all be float32 or all float64")
    if params:
        resolve("adamw_", params[0])(
            params,
            grads,
            exp_avg,
            exp_avg_sq,
            step=step,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            grad_scale=grad_scale,
        )


def _check(index: int, param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> None:
    if not param.shape == grad.shape == exp_avg.shape == exp_avg_sq.shape:
        raise ValueError(f"adamw_: tensors of parameter {index} differ in shape from {list(param.shape)}")
    states = (param, exp_avg, exp_avg_sq)
    if param.element_size() < 4 or any(x.dtype != param.dtype or not x.is_contiguous() for x in states):
        raise ValueError(f"adamw_: parameter {index} and its moments must be contiguous float32 or float64")
