"""The ratios that the kernels are held to: `sprout bench kernels --summary --json`.

    tree_attention_fwd_vs_sdpa      torch SDPA's time over ours, plain causal: the smallest of the cells
    tree_attention_full_vs_sdpa     the same, forward and backward
    tree_saving_efficiency          speed-up over unrolled SDPA on the canonical forest, over the ratio of
                                    visible pairs (those with a backward count 3.5 times)
    selected_logprob_full_vs_torch  logits + log_softmax + gather in the same dtype over ours
    selected_logprob_peak_ratio     our peak over torch's, beyond inputs, outputs and gradients
    selected_logprob_over_gemm      our time over that of our GEMMs alone
    update_vs_torch_path            a whole SEED update with all ops on the torch backend over ours
    adamw_of_copy                   bytes per second of adamw_ over those of a copy

Providers take turns, ratios are medians over rounds.
"""

from __future__ import annotations

import time

import torch

from sprout.bench.case import Setting
from sprout.bench.table import Row
from sprout.bench.tracked import attention, logprob, update
from sprout.bench.tracked.sizes import NAMED, QUICK
from sprout.bench.tracked.summary import Summary

LARGE_UPDATE_BEFORE_S = 380.0  # so that the whole stays below ten minutes


def measure_summary(device: torch.device, quick: bool = False) -> tuple[list[Row], Row]:
    """Table rows and ratios; what the time did not allow is said in the ratios."""
    sizes, start = QUICK if quick else NAMED, time.monotonic()
    summary = Summary()
    torch.manual_seed(0)
    wide, half = (Setting(device, dtype, "cpu", compile=False) for dtype in (torch.float32, torch.bfloat16))
    attention.causal_ratios(wide, sizes, summary)
    attention.forest_ratios(wide, sizes, summary)
    update.adamw_ratios(wide, sizes, summary)
    update.update_ratios("update", "quickstart", sizes.forest, sizes.update_rounds, device, summary)
    logprob.ratios(half, sizes, summary)
    if time.monotonic() - start < LARGE_UPDATE_BEFORE_S:
        update.update_ratios("update_135m", sizes.large_model, sizes.large_forest, 2, device, summary)
    else:
        summary.ratios["update_135m_vs_torch_path"] = "no time left"
    summary.ratios["seconds"] = time.monotonic() - start
    return summary.rows, summary.ratios
