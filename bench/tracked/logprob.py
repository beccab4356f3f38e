"""selected_logprob against torch's composition and against its own GEMMs.

Where half-precision GEMMs are slow, torch's composition cannot do 4,096 tokens in minutes. Each comparison
then takes as many tokens as fit its time and says how many. Memory, which no value changes, is measured with
all tokens and the GEMMs left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from sprout.bench.case import EAGER, Setting
from sprout.bench.kernels import peak_beyond_results
from sprout.bench.measure import Run, fastest_gemm_dtype, seconds_per_call
from sprout.bench.ops import logprob
from sprout.bench.ops.logprob import UPCAST
from sprout.bench.tracked.sizes import Sizes
from sprout.bench.tracked.summary import OURS, Summary, our_program

GEMMS = "its GEMMs alone"
PROBE_TOKENS, PROBE_SHARE = 256, 16  # of the vocabulary
TILE = 16384  # columns; wide enough for the full rate of a GEMM
FEWEST_TOKENS = 8


def ratios(setting: Setting, sizes: Sizes, summary: Summary) -> None:
    """Time against the GEMMs and both compositions, and memory."""
    H, V, device = sizes.hidden, sizes.vocab, setting.device
    fast = fastest_gemm_dtype(device, setting.dtype)
    gemms_run = (
        8 + 11 * sizes.logprob_rounds
    )  # ours 4, its GEMMs 4, the composition 3; ours also alone, twice
    per_token = gemms_run * _seconds_per_token(device, fast, H, V)
    tokens = _fitting(sizes.tokens, sizes.logprob_s, per_token)
    case = logprob.case(setting, tokens, H, V)
    ours = our_program(case, device).prepare("full")
    gemms = round(_flops(ours) / (2 * tokens * H * V))
    runs = {
        OURS: ours,
        GEMMS: partial(run_gemms, gemms, *_operands(device, fast, tokens, H, V)),
        UPCAST: case.providers[UPCAST]().prepare("full"),
    }
    timings, _ = summary.time(f"selected_logprob, {tokens} tokens", runs, sizes.logprob_rounds, device, fast)
    del runs
    peaks = _peaks(setting, sizes)
    summary.ratios |= {
        "selected_logprob_full_vs_torch": _vs_torch(setting, sizes, tokens, summary),
        "selected_logprob_full_vs_torch_upcast": timings[OURS].speedup_over(timings[UPCAST]),
        "selected_logprob_over_gemm": timings[GEMMS].speedup_over(timings[OURS]),
        "selected_logprob_gemms": gemms,
        "selected_logprob_gemm_dtype": str(fast),
        "selected_logprob_peak_ratio": peaks[OURS] / peaks[EAGER],
        "selected_logprob_peak_mb": peaks[OURS],
        "selected_logprob_peak_mb_torch": peaks[EAGER],
        "selected_logprob_tokens": tokens,
    }


def _peaks(setting: Setting, sizes: Sizes) -> dict[str, float]:
    """MB of all tokens at once, beyond inputs, outputs and gradients."""
    case = logprob.case(setting, sizes.tokens, sizes.hidden, sizes.vocab)
    with WithoutGemms():
        runs = {
            OURS: our_program(case, setting.device).prepare("full"),
            EAGER: case.providers[EAGER]().prepare("full"),
        }
        return {name: peak_beyond_results(run, setting.device) for name, run in runs.items()}


def _vs_torch(setting: Setting, sizes: Sizes, most: int, summary: Summary) -> float:
    """Against the composition in the same dtype; a single round where that is slow."""
    H, V, device = sizes.hidden, sizes.vocab, setting.device
    tokens = _fitting(most, sizes.peer_s, _composition_seconds_per_token(setting, H, V))
    rounds = sizes.logprob_rounds if tokens == most else 1
    case = logprob.case(setting, tokens, H, V)
    runs = {OURS: our_program(case, device).prepare("full"), EAGER: case.providers[EAGER]().prepare("full")}
    runs[OURS]()
    timings, _ = summary.time(f"selected_logprob, {tokens} tokens", runs, rounds, device)
    summary.ratios["selected_logprob_tokens_vs_torch"] = tokens
    return timings[OURS].speedup_over(timings[EAGER])


def run_gemms(count: int, rows: Tensor, weight: Tensor, d_rows: Tensor, d_weight: Tensor) -> None:
    """`count` of them: logits as often as it takes, then both gradients, into d_rows and d_weight."""
    for start in range(0, weight.shape[0], TILE):
        columns = weight[start : start + TILE]
        for _ in range(count - 2):
            logits = rows @ columns.T
        torch.addmm(d_rows, logits, columns, out=d_rows)
        torch.mm(logits.T, rows, out=d_weight[start : start + TILE])


class WithoutGemms(TorchDispatchMode):
    """Matrix products allocate and touch their result, or leave it as it is, and compute nothing."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.mm.default:
            a, b = args
            return a.new_full((a.shape[0], b.shape[1]), 0.5)
        if func is torch.ops.aten.addmm_.default:
            return args[0]
        return func(*args, **(kwargs or {}))


def _operands(device: torch.device, dtype: torch.dtype, tokens: int, H: int, V: int) -> list[Tensor]:
    """Rows, weight and their gradients."""
    shapes = ((tokens, H), (V, H)) * 2
    return [torch.full(shape, 1e-3, device=device, dtype=dtype) for shape in shapes]


def _flops(run: Run) -> int:
    """FLOPs of the GEMMs that `run` asks torch for."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def _seconds_per_token(device: torch.device, dtype: torch.dtype, H: int, V: int) -> float:
    """Of one GEMM with the head, from a small one."""
    columns = max(1, V // PROBE_SHARE)
    rows, weight = (torch.ones(n, H, device=device, dtype=dtype) for n in (PROBE_TOKENS, columns))
    run = partial(torch.mm, rows, weight.T)
    return seconds_per_call(run, device) * V / columns / PROBE_TOKENS


def _composition_seconds_per_token(setting: Setting, H: int, V: int) -> float:
    """Of torch's composition, forward and backward, from a small one: some CPUs take a hundred times longer
    for one of its three GEMMs in half precision than for another."""
    columns = max(1, V // PROBE_SHARE)
    run = logprob.case(setting, FEWEST_TOKENS, H, columns).providers[EAGER]().prepare("full")
    start = time.monotonic()
    run()
    return (time.monotonic() - start) * V / columns / FEWEST_TOKENS


def _fitting(most: int, seconds: float, seconds_per_token: float) -> int:
    """The largest power-of-two share of `most` that fits the time."""
    tokens = most
    while tokens > FEWEST_TOKENS and tokens * seconds_per_token > seconds:
        tokens //= 2
    return tokens
