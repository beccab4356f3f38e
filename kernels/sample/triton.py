"""Triton path of `sample`: one program per row, which reads its logits four times.

Once for the maximum, once for the sum of exponentials, once for the total of the integer probabilities, and
once to find the token. top_p < 1 adds a binary search for the smallest probability in the nucleus: about 50
more passes over the row, which stays in L2. All sums over the vocabulary but the first are of integers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sprout.kernels.launch import Blocks, Table, choose

TABLE: Table = {
    "sm80": {"row": Blocks({"BLOCK": 4096}, warps=16, stages=1)},
    "interpreter": {"row": Blocks({"BLOCK": 128})},
}


def sample(
    logits: Tensor,
    *,
    temperature: float | Tensor,
    top_p: float | Tensor = 1.0,
    key: Tensor,
    position: Tensor,
) -> tuple[Tensor, Tensor]:
    """See `sprout.kernels.sample`."""
    B, V = logits.shape
    token = torch.empty(B, dtype=torch.int64, device=logits.device)
    logprob = torch.empty(B, dtype=torch.float32, device=logits.device)
    if B > 0:
        blocks = choose(TABLE, logits.device, "row")
        _sample[(B,)](
            logits,
            _column(temperature, logits, torch.float32),
            _column(top_p, logits, torch.float64),
            key.contiguous(),
            position.contiguous(),
            token,
            logprob,
            V,
            *logits.stride(),
            # Every pass must find the same integers, so no pass may fuse what another does not.
            **{**blocks.launch(), "enable_fp_fusion": False},
        )
    return token, logprob


def _column(value: float | Tensor, logits: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(dtype).contiguous()
    return torch.full(logits.shape[:1], value, dtype=dtype, device=logits.device)


@triton.jit
def _sample(
    logits_ptr,  # [B, V]
    temperature_ptr,  # [B] float32
    top_p_ptr,  # [B] float64
    key_ptr,  # [B]
    position_ptr,  # [B]
    token_ptr,  # [B]
    logprob_ptr,  # [B]
    V,
    logits_stride,
    logits_step,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * logits_stride
    temperature = tl.load(temperature_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    divisor = tl.where(temperature == 0, 1.0, temperature)

    best, token = _largest(logits, logits_step, V, BLOCK)
    peak = tl.div_rn(best, divisor)
    total = tl.cast(0.0, tl.float64)
    for first in range(0, V, BLOCK):
        e = _exponentials(logits, logits_step, first, divisor, peak, V, BLOCK)
        total += tl.sum(e, 0).to(tl.float64)
    unit = (1125899906842624.0 / total).to(tl.float32)  # probabilities are multiples of 2**-50

    if temperature != 0:
        threshold = tl.cast(0, tl.int64)
        above = _mass_above(threshold, logits, logits_step, divisor, peak, unit, V, BLOCK)
        enough = top_p * above.to(tl.float64)
        reached = above
        if top_p < 1:
            # The smallest threshold such that the tokens above it do not reach top_p. It is the mass of the
            # least probable tokens of the nucleus, of which perhaps not all belong to it.
            lowest, threshold = threshold, tl.cast(1, tl.int64) << 50
            above = tl.cast(0, tl.int64)
            while threshold - lowest > 1:
                middle = (lowest + threshold) // 2
                mass = _mass_above(middle, logits, logits_step, divisor, peak, unit, V, BLOCK)
                short = mass.to(tl.float64) < enough
                lowest = tl.where(short, lowest, middle)
                threshold = tl.where(short, middle, threshold)
                above = tl.where(short, mass, above)
            reached = tl.cast(0, tl.int64)
            equals = tl.cast(0, tl.int64)
            for first in range(0, V, BLOCK):
                mass = _masses(logits, logits_step, first, divisor, peak, unit, V, BLOCK)
                reached += tl.sum(_kept(mass, threshold, above, enough, equals), 0)
                equals += tl.sum((mass == threshold).to(tl.int64), 0)

        # The token is as many as there are before it: those whose cumulative mass is at most the goal.
        uniform = _uniform(tl.load(key_ptr + row), tl.load(position_ptr + row))
        goal = (uniform * reached.to(tl.float64)).to(tl.int64)
        token = tl.cast(0, tl.int64)
        passed = tl.cast(0, tl.int64)
        equals = tl.cast(0, tl.int64)
        for first in range(0, V, BLOCK):
            mass = _masses(logits, logits_step, first, divisor, peak, unit, V, BLOCK)
            kept = _kept(mass, threshold, above, enough, equals)
            token += tl.sum((passed + tl.cumsum(kept, 0) <= goal).to(tl.int64), 0)
            passed += tl.sum(kept, 0)
            equals += tl.sum((mass == threshold).to(tl.int64), 0)

    z = tl.div_rn(tl.load(logits + token * logits_step).to(tl.float32), divisor)
    tl.store(token_ptr + row, token)
    tl.store(logprob_ptr + row, (z - peak) - tl.log(total.to(tl.float32)))


@triton.jit
def _load(logits, step, first, V, BLOCK: tl.constexpr):
    v = first + tl.arange(0, BLOCK).to(tl.int64)
    return tl.load(logits + v * step, v < V, other=-float("inf")).to(tl.float32)


@triton.jit
def _largest(logits, step, V, BLOCK: tl.constexpr):
    """The largest logit and the first token that has it."""
    best = tl.cast(-float("inf"), tl.float32)
    token = tl.cast(0, tl.int64)
    for first in range(0, V, BLOCK):
        x = _load(logits, step, first, V, BLOCK)
        highest = tl.max(x, 0)
        place = tl.min(tl.where(x == highest, first + tl.arange(0, BLOCK).to(tl.int64), V), 0)
        token = tl.where(highest > best, place, token)
        best = tl.maximum(best, highest)
    return best, token


@triton.jit
def _exponentials(logits, step, first, divisor, peak, V, BLOCK: tl.constexpr):
    """exp(z - peak) of the block of tokens from `first`; 0 beyond V."""
    return tl.exp(tl.div_rn(_load(logits, step, first, V, BLOCK), divisor) - peak)


@triton.jit
def _masses(logits, step, first, divisor, peak, unit, V, BLOCK: tl.constexpr):
    """Integer probabilities of the block of tokens from `first`; 0 beyond V."""
    return (_exponentials(logits, step, first, divisor, peak, V, BLOCK) * unit).to(tl.int64)


@triton.jit
def _mass_above(threshold, logits, step, divisor, peak, unit, V, BLOCK: tl.constexpr):
    """Sum of the masses that exceed `threshold`."""
    above = tl.cast(0, tl.int64)
    for first in range(0, V, BLOCK):
        mass = _masses(logits, step, first, divisor, peak, unit, V, BLOCK)
        above += tl.sum(tl.where(mass > threshold, mass, 0), 0)
    return above


@triton.jit
def _kept(mass, threshold, above, enough, equals):
    """Masses of a block with 0 outside the nucleus; `equals` tokens of earlier blocks are at the threshold.

    A token is in while the more probable ones, and the equally probable before it, do not reach `enough`.
    """
    equal = (mass == threshold).to(tl.int64)
    before = above + (equals + tl.cumsum(equal, 0) - equal) * threshold
    return tl.where((mass > threshold) | ((equal > 0) & (before.to(tl.float64) < enough)), mass, 0)


@triton.jit
def _uniform(key, position):
    """Output number `position` of the SplitMix64 stream seeded with mix(key), as float64 in [0, 1)."""
    gamma = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    bits = _mix(_mix(key.to(tl.uint64)) + (position.to(tl.uint64) + 1) * gamma)
    return (bits >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _mix(z):
    """SplitMix64's finaliser of 64 bits (Stafford's variant 13 of MurmurHash3's)."""
    z = (z ^ (z >> 30)) * tl.full([], 0xBF58476D1CE4E5B9, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full([], 0x94D049BB133111EB, tl.uint64)
    return z ^ (z >> 31)
