"""Specification of `selected_logprob`: the whole [tokens, vocabulary] log-softmax and autograd."""

import torch
from torch import Tensor


def selected_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    temperature: float | Tensor = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob [M] of `target` at hidden rows `row`, and the entropy [M] there (None unless asked for)."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        temperature = temperature.detach().to(wide)[:, None]
    logits = hidden[row].to(wide) @ weight.to(wide).T / temperature
    logprobs = torch.log_softmax(logits, dim=1)
    logprob = logprobs.gather(1, target[:, None]).squeeze(1)
    entropy = -(logprobs.exp() * logprobs).sum(dim=1) if with_entropy else None
    return logprob, entropy
