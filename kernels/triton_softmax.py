"""The step of online softmax that attention kernels share, with scores in units of log 2 (one exp2 each)."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Where peaks start: below every score but finite, so exp2(-inf - FLOOR) is 0 for a row that sees nothing.
FLOOR = tl.constexpr(-1.0e38)


@triton.jit
def absorb(acc, mass, peak, scores, value):
    """Add the values of a block: acc [M, D], mass and peak [M], scores [M, N], value [N, D]."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - new_peak[:, None])
    decay = tl.exp2(peak - new_peak)
    mass = mass * decay + tl.sum(weights, 1)
    acc = tl.dot(weights.to(value.dtype), value, acc * decay[:, None], input_precision="ieee")
    return acc, mass, new_peak
