"""Log-probs of chosen tokens from hidden rows and the LM head, without holding [tokens, vocabulary].

CPU (`native`, `torch`): a loop over vocabulary tiles (tiles.py). A tile's logits come from one GEMM, and an
epilogue folds them into four numbers per token. Backward recomputes them, turns them into d(logits) in place,
and two more GEMMs give the gradients. `native` reads a tile once per epilogue, `torch` four to ten times.

- Memory beyond inputs and gradients: a few tiles of 16 MiB and, for half precision, the selected rows in
  float32, where logits + log_softmax + gather hold [tokens, vocabulary] several times.
- FLOPs: 2 MHV forward, 6 MHV backward (2 of them recompute) for M tokens, H hidden, V words. The epilogue
  reads M V floats forward, and reads and writes them backward.
- Numerics: half-precision operands are exact in float32, in which logits and sums are; gradients are rounded
  once. With AVX512-BF16 d(logits) is rounded to bfloat16 too, as on a GPU.
- Measured on one Zen 1 core (AVX2), M 512, H 896, V 16,384, bfloat16: forward + backward 2.00 s of CPU time,
  1.03x its float32 GEMMs alone (with entropy 1.04x; `torch` 1.06x). AVX512-BF16 is tested, not timed.

GPU (`triton`): the forward keeps the same numbers while tiles of logits go by on the chip (triton.py); the
backward forms the tiles again, in one of two modes chosen by H (triton_backward.py).

- Memory beyond inputs and gradients: 4 numbers per token and 2,048 vocabulary entries (1,024 if tokens are
  few); in the backward the gathered rows, their gradients in float32 and, if H is large, a workspace for
  d(logits) of 256 MiB or 256 columns. Narrow heads need no workspace.
- FLOPs: 2 MHV forward, 6 MHV backward; 8 without the workspace, where each gradient forms its own logits.
- Numerics: float32 sums, never tf32; d(logits) is rounded to the inputs' dtype for the tensor cores, in
  float16 after scaling by a power of two. One writer per gradient element and one order of summation, so
  equal inputs give equal bits; rows that serve several targets are summed in token order. Tails of the
  vocabulary are masked exactly. A token without upstream gradient adds exactly 0, whatever its row holds.
- Measured: holds the accuracy rule in Triton's interpreter (float32, float16, both modes) and compiles for
  sm_80 and sm_90 without spills. No speed has been measured on a GPU yet.
"""

from torch import Tensor, _assert_async, int64

from sprout.kernels.dispatch import resolve

__all__ = ["selected_logprob"]


def selected_logprob(
    hidden: Tensor,
    weight: Tensor,
    row: Tensor,
    target: Tensor,
    temperature: float | Tensor = 1.0,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of `target[m]` under the logits of hidden row `row[m]`, and optionally the entropy there.

    With z_m = hidden[row[m]] @ weight.T / temperature[m]:

        logprob[m] = z_m[target[m]] - logsumexp(z_m)
        entropy[m] = -sum(softmax(z_m) * log_softmax(z_m))

    Args:
        hidden: [N, H] final hidden rows, float32, bfloat16, float16 or float64.
        weight: [V, H] LM head (or tied embedding), same dtype and device as `hidden`.
        row: [M] int64 in [0, N), in any order; a row may serve several targets.
        target: [M] int64 token ids in [0, V).
        temperature: divides the logits once; a positive number or an [M] tensor. It gets no gradient.
        with_entropy: also return the entropy.

    Returns:
        logprob [M] and entropy [M] (or None), in nats; float32, or float64 for float64 inputs. Both are
        differentiable with respect to `hidden` and `weight`, from per-token upstream gradients c and e:
        d(logits) = c * (onehot - p) / T - e * p * (log p + entropy) / T. Only the gradients that are asked
        for are computed. Sums run in the returned precision and in a fixed order.

    Raises:
        ValueError: shapes or dtypes that do not fit, a temperature that is not positive, a row or target out
            of range. CUDA tensors are checked on the device, without waiting for it, so there a bad value
            surfaces as a device-side assertion.
    """
    check_arguments(hidden, weight, row, target, temperature)
    implementation = resolve("selected_logprob", hidden)
    logprob, entropy = implementation(hidden, weight, row, target, temperature, with_entropy)
    return logprob, entropy


def check_arguments(
    hidden: Tensor, weight: Tensor, row: Tensor, target: Tensor, temperature: float | Tensor
) -> None:
    """Raises what `selected_logprob` raises."""
    _check_shapes(hidden, weight, row, target, temperature)
    check_range("selected_logprob: row", row, 0, hidden.shape[0])
    check_range("selected_logprob: target", target, 0, weight.shape[0])
    _check_temperature(temperature)


def _check_shapes(
    hidden: Tensor, weight: Tensor, row: Tensor, target: Tensor, temperature: float | Tensor
) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"selected_logprob: hidden must be [N, H] and weight [V, H], "
            f"not {list(hidden.shape)} and {list(weight.shape)}"
        )
    if hidden.dtype != weight.dtype or not hidden.is_floating_point():
        raise ValueError(
            f"selected_logprob: hidden and weight must share one floating dtype, "
            f"not {hidden.dtype} and {weight.dtype}"
        )
    if row.dtype != int64 or target.dtype != int64 or row.ndim != 1 or row.shape != target.shape:
        raise ValueError("selected_logprob: row and target must be int64 tensors of one length [M]")
    if isinstance(temperature, Tensor) and temperature.shape != row.shape:
        raise ValueError(f"selected_logprob: temperature must be a number or [{row.shape[0]}]")


def check_range(name: str, index: Tensor, first: int, end: int) -> None:
    """ValueError, or a device-side assertion on CUDA, unless all of `index` is in [first, end)."""
    if index.numel() == 0:
        return
    lowest, highest = index.aminmax()
    if index.is_cuda:
        _assert_async((lowest >= first) & (highest < end), f"{name} outside [{first}, {end})")
    elif lowest < first or highest >= end:
        raise ValueError(f"{name} must be in [{first}, {end}), found {int(lowest)}..{int(highest)}")


def _check_temperature(temperature: float | Tensor) -> None:
    if isinstance(temperature, Tensor):
        if temperature.is_cuda:
            _assert_async((temperature > 0).all(), "selected_logprob: temperature must be positive")
        elif not bool((temperature > 0).all()):
            raise ValueError("selected_logprob: every temperature must be positive")
    elif not temperature > 0:
        raise ValueError(f"selected_logprob: temperature must be positive, not {temperature}")
