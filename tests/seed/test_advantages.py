"""Group statistics: degenerate groups, missing rewards, weights of turns, the invalid-action penalty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.advantages import group_advantages, turn_advantage

rewards = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8)


@given(rewards)
@settings(max_examples=100, deadline=None)
def test_advantages_are_the_formula(values):
    got = group_advantages(values, [1] * len(values))
    r = np.asarray(values)
    want = (r - r.mean()) / (r.std(ddof=1) + 1e-6) if np.ptp(r) > 0 else np.zeros_like(r)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@given(rewards, st.integers(0, 8), st.sampled_from([None, float("nan"), float("inf")]))
@settings(max_examples=100, deadline=None)
def test_a_missing_reward_changes_nobody_else(values, place, missing):
    place = min(place, len(values))
    with_gap = [*values[:place], missing, *values[place:]]
    got = group_advantages(with_gap, [3] * len(with_gap))
    assert np.isnan(got[place])
    assert np.array_equal(np.delete(got, place), group_advantages(values, [3] * len(values)))


@pytest.mark.parametrize("statistics", ["trajectory", "turn"])
@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("values", [[0.7], [0.1] * 8, [0.0] * 3, [1.0, None]])
def test_no_spread_is_exactly_zero(values, scale, statistics):
    got = group_advantages(values, range(1, len(values) + 1), statistics=statistics, scale=scale)
    known = [value is not None for value in values]
    assert (got[known] == 0).all()


def test_a_group_without_any_reward_has_no_advantage():
    assert np.isnan(group_advantages([None, float("nan")], [1, 1])).all()


def test_mean_only():
    np.testing.assert_allclose(group_advantages([1, 0, 0, 1], [1] * 4, scale="none"), [0.5, -0.5, -0.5, 0.5])


def test_turn_statistics_weigh_long_episodes_more():
    got = group_advantages([1.0, 0.0], [1, 3], statistics="turn", scale="none")
    np.testing.assert_allclose(got, [0.75, -0.25])


def test_tiny_spread_can_be_ignored():
    noisy = [0.0, 0.001, 0.0, 0.002]
    assert np.abs(group_advantages(noisy, [1] * 4)).max() > 0.5
    assert (group_advantages(noisy, [1] * 4, min_std=0.01) == 0).all()


def test_penalty_acts_on_the_invalid_turn_alone_and_keeps_its_size_in_failed_groups():
    failed = group_advantages([0.0] * 4, [1] * 4)
    assert turn_advantage(failed[0], valid=True, penalty=0.1) == 0
    assert turn_advantage(failed[0], valid=False, penalty=0.1) == -0.1
