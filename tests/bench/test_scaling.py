"""Weak scaling: processes are started and timed, and the ratio is that of the rounds."""

import pytest

from sprout.bench.measure import Timing
from sprout.bench.scaling import ScalingResult, measure_scaling


def test_efficiency_is_the_time_of_one_process_over_that_of_all():
    timings = {("update", 1): Timing((2.0, 3.0)), ("update", 2): Timing((2.5, 4.0))}
    timings |= {("generation", 1): Timing((1.0,)), ("generation", 2): Timing((1.0,))}
    result = ScalingResult(2, timings, cores=2)
    assert result.summary() == {
        "weak_scaling_update": pytest.approx((0.8 + 0.75) / 2),
        "weak_scaling_generation": 1.0,
        "processes": 2,
        "cores": 2,
    }
    assert result.rows()[1]["work_per_s"] == pytest.approx(2 / 3.25)


def test_one_process_and_two_are_measured():
    result = measure_scaling(2, "quickstart", "cpu", "float32", rounds=1, size="quick", calls=2)
    assert {row["processes"] for row in result.rows()} == {1, 2}
    assert all(row["median_s"] > 0 for row in result.rows())


def test_what_a_process_says_last_is_passed_on():
    with pytest.raises(RuntimeError, match="neither one of small, quickstart"):
        measure_scaling(2, "no-such-model", "cpu", "float32", rounds=1, size="quick", calls=1)
