"""Shared factories of the recipe's tests."""

import numpy as np
import pytest
from sprout.seed.trajectory import Trajectory, TurnRecord, split_context


def _turn(context, action, previous=(), **fields):
    shared, tail = split_context(np.asarray(context, np.int64), np.asarray(previous, np.int64))
    values = {"observation": "o", "response": "r", "finished": "stop"}
    values |= {"well_formed": True, "admissible": True}
    values |= {"logprobs": [-0.5] * len(action), "mask": [True] * len(action)}
    return TurnRecord(**(values | fields), shared=shared, tail=tail, action=list(action))


def _trajectory(pairs, **fields):
    turns, previous = [], []
    for context, action in pairs:
        turns.append(_turn(context, action, previous))
        previous = [*context, *action]
    values = {"update": 0, "group": "train-1", "member": 0, "env": "household", "split": "train", "seed": 1}
    values |= {"task": "t", "family": "f", "reward": 1.0, "success": True}
    return Trajectory(**(values | fields), turns=turns)


@pytest.fixture(scope="session")
def make_turn():
    """Builds a `TurnRecord` from full context and action ids."""
    return _turn


@pytest.fixture(scope="session")
def make_trajectory():
    """Builds a `Trajectory` from (context, action) pairs; keyword arguments replace its fields."""
    return _trajectory
