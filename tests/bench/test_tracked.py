"""The tracked ratios are all there, and what stands beside our kernels is what it claims to be."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from sprout.bench.ops.logprob import eager_logprob
from sprout.bench.tracked import measure_summary
from sprout.bench.tracked.logprob import WithoutGemms, _fitting, run_gemms

PROMISED = {
    "tree_attention_fwd_vs_sdpa",
    "tree_attention_full_vs_sdpa",
    "tree_saving_efficiency",
    "selected_logprob_full_vs_torch",
    "selected_logprob_peak_ratio",
    "selected_logprob_over_gemm",
    "update_vs_torch_path",
    "adamw_of_copy",
}


def test_all_ratios_are_reported():
    rows, ratios = measure_summary(torch.device("cpu"), quick=True)
    assert set(ratios) >= PROMISED
    assert all(ratios[name] > 0 for name in PROMISED)
    assert ratios["tree_attention_fwd_vs_sdpa"] == min(
        value for name, value in ratios.items() if name.startswith("tree_attention_fwd_vs_sdpa_d")
    )
    assert ratios["selected_logprob_tokens"] == 64 and ratios["tree_saving_predicted"] > 1
    assert all(row["median_s"] > 0 for row in rows)


def test_gemms_alone_are_as_many_as_the_op_has():
    M, H, V = 8, 5, 40
    operands = [torch.ones(shape) for shape in ((M, H), (V, H)) * 2]
    for count in (3, 4):
        with FlopCounterMode(display=False) as counter:
            run_gemms(count, *operands)
        assert counter.get_total_flops() == count * 2 * M * H * V


def test_without_gemms_allocates_the_same_and_computes_nothing():
    hidden, weight = torch.ones(6, 4, requires_grad=True), torch.ones(30, 4, requires_grad=True)
    with WithoutGemms(), FlopCounterMode(display=False) as counter:
        eager_logprob(torch.arange(6), hidden, weight).sum().backward()
    assert counter.get_total_flops() in (0, 3 * 2 * 6 * 4 * 30)  # seen or not, depending on which is inside
    assert (weight.grad == 0.5).all() and (hidden.grad == 0.5).all()


def test_tokens_are_halved_until_they_fit():
    assert _fitting(4096, seconds=10.0, seconds_per_token=0.01) == 512
    assert _fitting(4096, seconds=100.0, seconds_per_token=0.01) == 4096
    assert _fitting(4096, seconds=0.0, seconds_per_token=1.0) == 8
