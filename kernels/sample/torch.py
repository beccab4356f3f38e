"""Plain-torch path of `sample`: all rows at once.

Per-row results must not depend on the batch, and floating-point sums can: their order follows the shape and
the number of threads. So probabilities become integers and every sum over the vocabulary is exact.
"""

import torch
from torch import Tensor

PROBABILITY_BITS = 50  # probabilities are multiples of 2**-50
GAMMA = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's constants as wrapping int64
MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
MIX_2 = 0x94D049BB133111EB - 2**64


def sample(
    logits: Tensor,
    *,
    temperature: float | Tensor,
    top_p: float | Tensor = 1.0,
    key: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `sprout.kernels.sample`."""
    temperature = torch.as_tensor(temperature, dtype=torch.float32, device=logits.device).expand(len(logits))
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature)
    logprobs = torch.log_softmax(logits.float() / divisor[:, None], dim=1)
    mass = (logprobs.exp() * 2.0**PROBABILITY_BITS).long()
    if _cuts(top_p):
        mass = torch.where(_nucleus(mass, top_p), mass, 0)
    cumulative = mass.cumsum(dim=1)
    goal = (uniform(key, position) * cumulative[:, -1]).long()
    drawn = torch.searchsorted(cumulative, goal[:, None], right=True).squeeze(1)
    token = torch.where(greedy, logits.argmax(dim=1), drawn)
    return token, logprobs.gather(1, token[:, None]).squeeze(1)


def uniform(key: Tensor, position: Tensor) -> Tensor:
    """The random numbers in [0, 1), float64, multiples of 2**-53, of int64 keys and positions."""
    bits = _mix(_mix(key) + (position + 1) * GAMMA)
    return _shift(bits, 11).double() * 2.0**-53


def _nucleus(mass: Tensor, top_p: float | Tensor) -> Tensor:
    """Which tokens [B, V] are the most probable ones that together reach top_p of the mass."""
    most, token = mass.sort(dim=1, descending=True, stable=True)
    reached = most.cumsum(dim=1)
    enough = torch.as_tensor(top_p, dtype=torch.float64, device=mass.device) * reached[:, -1]
    return torch.zeros_like(mass, dtype=torch.bool).scatter_(1, token, reached - most < enough[:, None])


def _cuts(top_p: float | Tensor) -> bool:
    """Whether any row needs a nucleus; on CUDA that is not known without waiting for the device."""
    if isinstance(top_p, Tensor):
        return top_p.is_cuda or bool((top_p < 1).any())
    return top_p < 1


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser of 64 bits (Stafford's variant 13 of MurmurHash3's)."""
    z = (z ^ _shift(z, 30)) * MIX_1
    z = (z ^ _shift(z, 27)) * MIX_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical (zero-filling) right shift of int64."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
