"""Specification of `sample`: one row at a time, with Python's own integers."""

import torch
from torch import Tensor

PROBABILITY_BITS = 50  # probabilities are multiples of 2**-50
GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's increment, 2**64 / golden ratio


def sample(
    logits: Tensor,
    *,
    temperature: float | Tensor,
    top_p: float | Tensor = 1.0,
    key: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `sprout.kernels.sample`."""
    temperatures = torch.as_tensor(temperature).expand(len(logits)).tolist()
    nuclei = torch.as_tensor(top_p).expand(len(logits)).tolist()
    rows = zip(logits, temperatures, nuclei, key.tolist(), position.tolist(), strict=True)
    chosen = [_sample_row(*row) for row in rows]
    token = torch.tensor([token for token, _ in chosen], dtype=torch.int64, device=logits.device)
    logprob = torch.tensor([logprob for _, logprob in chosen], dtype=torch.float32, device=logits.device)
    return token, logprob


def uniform(key: int, position: int) -> float:
    """The random number in [0, 1) of (key, position), a multiple of 2**-53."""
    return (_mix(_mix(key % 2**64) + (position + 1) * GAMMA) >> 11) * 2.0**-53


def _sample_row(
    logits: Tensor, temperature: float, top_p: float, key: int, position: int
) -> tuple[int, float]:
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=0)
    if temperature == 0:
        token = int(logits.argmax())
        return token, float(logprobs[token])
    mass = [int(p * 2.0**PROBABILITY_BITS) for p in logprobs.exp().tolist()]
    enough, reached, nucleus = top_p * sum(mass), 0, set()
    for token in sorted(range(len(mass)), key=lambda token: (-mass[token], token)):
        if reached < enough:
            nucleus.add(token)
            reached += mass[token]
    goal, cumulative = int(uniform(key, position) * reached), 0
    for token in sorted(nucleus):
        cumulative += mass[token]
        if cumulative > goal:
            break
    return token, float(logprobs[token])


def _mix(z: int) -> int:
    """SplitMix64's finaliser of 64 bits (Stafford's variant 13 of MurmurHash3's)."""
    z %= 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)
