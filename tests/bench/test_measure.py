"""Timing and memory of functions whose time and memory are known."""

import math

import numpy as np
import pytest
import torch

from sprout.bench.measure import CLEAR_REFS, Timing, interleaved, machine, peak_mb

CPU = torch.device("cpu")


def test_quantiles_and_ratios_of_rounds():
    ours, peer = Timing((1.0, 2.0, 4.0)), Timing((3.0, 6.0, 20.0))
    assert (ours.median, ours.p20, ours.p80) == pytest.approx((2.0, 1.4, 3.2))
    assert ours.speedup_over(peer) == 3.0  # a slow last round moves both


def test_providers_take_turns():
    calls = []
    timings, ceilings = interleaved({n: lambda n=n: calls.append(n) for n in "ab"}, rounds=4, device=CPU)
    assert sorted(calls[:2]) == sorted(calls[2:4]) == ["a", "b"]
    assert calls.count("a") == calls.count("b") == len(timings["a"].seconds) == 4
    assert ceilings.gemm_gflops > 0 and ceilings.copy_gb_per_s > 0


@pytest.mark.skipif(not CLEAR_REFS.exists(), reason="needs Linux's resettable high-water mark of memory")
@pytest.mark.parametrize("allocate", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_peak_counts_freed_buffers_and_not_what_was_held_before(allocate):
    held = allocate(16 * 2**20)

    def run():
        buffer = allocate(8 * 2**20)
        del buffer

    megabytes = peak_mb(run, CPU)
    assert megabytes == pytest.approx(8 * 2**20 * held.itemsize / 1e6, rel=0.1)


def test_machine_names_device_and_versions():
    columns = machine(CPU)
    assert columns["torch"] == torch.__version__
    assert columns["device"] and not any(isinstance(v, float) and math.isnan(v) for v in columns.values())
