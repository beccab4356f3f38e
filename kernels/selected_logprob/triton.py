"""Forward of `selected_logprob` in Triton; the backward is in triton_backward.py.

One program per block of tokens and chunk of the vocabulary keeps the chunk's maximum m, sum of exp(z - m) and
sum of exp(z - m) (z - m) while its tiles of logits go by; a second kernel joins the chunks. Chunks do not
depend on the number of tokens, so within a shape class neither does a token's log-prob.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from sprout.kernels.launch import Blocks, choose, interpreting
from sprout.kernels.selected_logprob.triton_backward import Upstream, backward
from sprout.kernels.selected_logprob.triton_blocks import TABLE
from sprout.kernels.selected_logprob.triton_kernels import combine_kernel, forward_kernel

FEW_TOKENS = 32
TOKENS_PER_PROGRAM = 128  # of the kernel that joins chunks


def selected_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    temperature: float | Tensor = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """See `sprout.kernels.selected_logprob`."""
    logprob, entropy = _SelectedLogprob.apply(
        hidden, weight, row, target, inverse_of(temperature, row), with_entropy
    )
    return logprob, entropy


def inverse_of(temperature: float | Tensor, row: Tensor) -> Tensor:
    """1 / temperature of every token, [M] float32."""
    if isinstance(temperature, Tensor):
        return 1.0 / temperature.detach().float()
    return torch.full(row.shape, 1.0 / temperature, dtype=torch.float32, device=row.device)


class _SelectedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [N, H]
        weight: Tensor,  # [V, H]
        row: Tensor,  # [M]
        target: Tensor,  # [M]
        inverse_temperature: Tensor,  # [M]
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        scores = score(hidden, weight, row, target, inverse_temperature, with_entropy)
        ctx.save_for_backward(
            hidden, weight, row, target, inverse_temperature, scores.peak, scores.mass, scores.entropy
        )
        ctx.set_materialize_grads(False)
        return scores.logprob, scores.entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_logprob: Tensor | None, d_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, row, target, inverse_temperature, peak, mass, entropy = ctx.saved_tensors
        upstream = Upstream.of(inverse_temperature, peak, mass, d_logprob, entropy, d_entropy, weight.dtype)
        gradients = backward(hidden, weight, row, target, upstream, *ctx.needs_input_grad[:2])
        return *gradients, None, None, None, None


@dataclass(frozen=True)
class Scores:
    """What the forward finds, [M] float32: log-prob, entropy, largest z, and sum of exp(z - peak)."""

    logprob: Tensor
    entropy: Tensor | None
    peak: Tensor
    mass: Tensor


def score(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    inverse_temperature: Tensor,
    with_entropy: bool,
    logits: Tensor | None = None,
) -> Scores:
    """Forward pass. Tokens of row -1 are passed over: theirs are no scores.

    `logits` [kept, V] float32, if given, receives z of the first tokens.
    """
    M, (V, H) = len(row), weight.shape
    logit, logprob, peak, mass = torch.empty(4, M, dtype=torch.float32, device=hidden.device)
    entropy = torch.empty_like(logit) if with_entropy else None
    if M == 0:
        return Scores(logprob, entropy, peak, mass)
    kind = "kept" if logits is not None else "entropy" if with_entropy or H <= 64 or H % 64 else "many"
    kind = "unaligned" if H % 16 else kind
    kind = "few" if M <= FEW_TOKENS else kind
    blocks = choose(TABLE, hidden.device, ("forward", hidden.itemsize, kind))
    chunks = triton.cdiv(V, blocks["CHUNK"])
    parts = torch.empty(3 if with_entropy else 2, chunks, M, dtype=torch.float32, device=hidden.device)
    peaks, masses, moments = parts[0], parts[1], parts[-1]
    forward_kernel[(triton.cdiv(M, blocks["BLOCK_M"]) * chunks,)](
        hidden,
        weight,
        row.contiguous(),
        target.contiguous(),
        inverse_temperature.contiguous(),
        logit,
        peaks,
        masses,
        moments,
        logits,
        M,
        V,
        0 if logits is None else len(logits),
        *hidden.stride(),
        *weight.stride(),
        H=H,
        WITH_ENTROPY=with_entropy,
        INTERPRET=interpreting(),
        **blocks.launch(),
    )
    blocks = Blocks({"BLOCK_M": TOKENS_PER_PROGRAM})
    combine_kernel[(triton.cdiv(M, blocks["BLOCK_M"]),)](
        logit, peaks, masses, moments, logprob, peak, mass, entropy, M, chunks, **blocks.launch()
    )
    return Scores(logprob, entropy, peak, mass)
