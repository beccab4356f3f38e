"""Token choice with temperature and nucleus, from counter-based random numbers.

Idea: probabilities become integers (multiples of 2**-50), so that sums over the vocabulary are exact in any
order and a row's token cannot depend on how a backend splits the work or on the rows around it. The nucleus
is found without sorting where that pays: `triton` searches, bit by bit, the smallest probability whose more
probable tokens do not yet reach top_p, and counts equals by token id.

FLOPs and memory: bound by reading the logits. `triton` reads a row four times from L2 (maximum, sum, total of
integers, token), and about 50 times more for top_p < 1; it allocates nothing but its results. `native` takes
them from a heap, `torch` sorts.

Numerics: exponentials in float32, so backends may disagree on a token where u falls within about 1e-7 of a
boundary between two; random numbers and integer sums are the same bits everywhere.

Measured: the Triton kernel chooses the reference's tokens in the interpreter and compiles for sm_80 and
sm_90; no speed has been measured on a GPU yet.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, _assert_async, int64

from sprout.kernels.dispatch import resolve

__all__ = ["sample"]


def sample(
    logits: Tensor,
    *,
    temperature: float | Tensor,
    top_p: float | Tensor = 1.0,
    key: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """Choose one token per row; a row's choice depends on that row alone, never on the batch around it.

    With u in [0, 1) the random number of (key, position), the token is the first whose cumulative probability
    exceeds u times the total. Probabilities are softmax(logits / temperature), rounded to multiples of 2**-50
    so that their sums are exact integers in any order; with top_p < 1 they are those of the nucleus: the
    fewest most probable tokens that together reach top_p (Holtzman et al., arXiv 1904.09751), ties broken by
    token id.

    u comes from SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
    2014): it is the top 53 bits of output number `position` of the stream seeded with mix64(key).

    Args:
        logits: [B, V], any floating dtype; -inf forbids a token. temperature: divides the logits; a number >=
        0 or a [B] tensor. 0 is greedy: the most probable token, the
            first of equals.
        top_p: nucleus mass in (0, 1], a number or a [B] tensor; 1 is the whole distribution.
        key: [B] int64, what the numbers are for (run, task, member, turn ...).
        position: [B] int64, index of the token within what `key` names.

    Returns:
        token [B] int64 and logprob [B] float32, the token's log-prob in nats under softmax(logits /
        temperature) over the whole vocabulary, before top_p; at temperature 1 where greedy.

    Raises:
        ValueError: shapes that do not fit, a temperature or top_p out of range, or a row with NaN, +inf or
        nothing but
            -inf. CUDA tensors are checked on the device, where a bad value surfaces as a device-side
            assertion.
    """
    if logits.ndim != 2 or logits.shape[1] == 0 or not logits.is_floating_point():
        raise ValueError(f"sample: logits must be floating [B, V] with V > 0, not {list(logits.shape)}")
    for name, counter in (("key", key), ("position", position)):
        if counter.dtype != int64 or counter.shape != logits.shape[:1]:
            raise ValueError(f"sample: {name} must be int64 [{logits.shape[0]}]")
    _check_parameter("temperature", temperature, logits, "must be >= 0", lambda t: t >= 0)
    _check_parameter("top_p", top_p, logits, "must be in (0, 1]", lambda p: (p > 0) & (p <= 1))
    _check(logits.detach().amax(dim=1).isfinite(), "each row of logits needs a finite maximum, without NaN")
    implementation = resolve("sample", logits)
    token, logprob = implementation(
        logits.detach(), temperature=temperature, top_p=top_p, key=key, position=position
    )
    return token, logprob


def _check_parameter(
    name: str, value: float | Tensor, logits: Tensor, rule: str, holds: Callable[[Any], Any]
) -> None:
    if not isinstance(value, Tensor):
        if not holds(value):
            raise ValueError(f"sample: {name} {rule}, not {value}")
        return
    if value.shape != logits.shape[:1]:
        raise ValueError(f"sample: {name} must be a number or [{logits.shape[0]}]")
    _check(holds(value), f"every {name} {rule}")


def _check(condition: Tensor, message: str) -> None:
    """Demand that `condition` [B] holds everywhere; on CUDA the device does, so that nobody waits for it."""
    if condition.is_cuda:
        _assert_async(condition.all(), f"sample: {message}")
    elif not bool(condition.all()):
        raise ValueError(f"sample: {message}")
