"""The forest against a brute-force trie of the same sequences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.engine.forest import Forest, Turn
from sprout.engine.microbatch import split_turns

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(lambda x: np.array(x, np.int64))
TURNS = st.lists(
    st.builds(lambda c, a, t: Turn(c, a, t), IDS, IDS, st.one_of(st.none(), IDS)), min_size=1, max_size=8
)


def sequences(turns):
    students = [np.concatenate([t.context, t.action]) for t in turns]
    teachers = [np.concatenate([t.teacher_context, t.action]) for t in turns if t.teacher_context is not None]
    return students, teachers


def prefixes(group):
    return {tuple(s[: i + 1]) for s in group for i in range(len(s) - 1)}


def path(forest, row):
    """Tokens of all rows visible to `row`, by depth: its prefix."""
    enter, exit_ = forest.enter.numpy(), forest.exit.numpy()
    visible = np.flatnonzero((enter <= enter[row]) & (enter[row] < exit_))
    order = np.argsort(forest.position.numpy()[visible])
    assert (forest.position.numpy()[visible][order] == np.arange(len(visible))).all()
    return tuple(forest.token.numpy()[visible][order])


@settings(max_examples=150, deadline=None)
@given(TURNS)
def test_rows_are_the_distinct_prefixes(turns):
    forest = Forest.pack(turns)
    students, teachers = sequences(turns)
    rows = [path(forest, r) for r in range(forest.rows)]
    assert len(set(rows)) == forest.rows
    assert set(rows[: forest.trained]) == prefixes(students)
    assert set(rows[forest.trained :]) == prefixes(teachers) - prefixes(students)


@settings(max_examples=150, deadline=None)
@given(TURNS)
def test_pairs_point_at_the_predecessor_of_each_action_token(turns):
    forest = Forest.pack(turns)
    student, teacher = forest.read[forest.student_row], forest.read[forest.teacher_row]
    m = 0
    for i, turn in enumerate(turns):
        for j, token in enumerate(turn.action):
            assert forest.turn[m] == i and forest.target[m] == token
            assert path(forest, int(student[m])) == (*turn.context, *turn.action[:j])
            if turn.teacher_context is None:
                assert forest.teacher_row[m] == -1
            else:
                assert path(forest, int(teacher[m])) == (*turn.teacher_context, *turn.action[:j])
            m += 1
    assert m == len(forest.target)
    assert forest.trained_read == int((forest.read < forest.trained).sum())
    assert set(forest.read.tolist()) == {*student.tolist(), *teacher[forest.teacher_row >= 0].tolist()}


@settings(max_examples=80, deadline=None)
@given(TURNS)
def test_trained_rows_never_see_scored_rows(turns):
    forest = Forest.pack(turns)
    enter, exit_, T = forest.enter.numpy(), forest.exit.numpy(), forest.trained
    seen = (enter[None, T:] <= enter[:T, None]) & (enter[:T, None] < exit_[None, T:])
    assert not seen.any()


@settings(max_examples=80, deadline=None)
@given(TURNS, st.integers(13, 40))
def test_micro_batches_cover_every_turn_within_the_row_budget(turns, budget):
    budget += max(
        len(t.context)
        + 2 * len(t.action)
        + len(t.context if t.teacher_context is None else t.teacher_context)
        for t in turns
    )
    groups = split_turns(turns, budget)
    assert sorted(i for g in groups for i in g) == list(range(len(turns)))
    assert all(Forest.pack([turns[i] for i in g]).rows <= budget for g in groups)


def canonical_turns(
    seed=0, trajectories=4, rounds=8, prompt=256, observation=48, action=24, skill=64, vocab=1000
):
    """Trajectories sharing a prompt, append layout, skill before the action."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, vocab, prompt)
    turns = []
    for _ in range(trajectories):
        history = start
        for _ in range(rounds):
            a = rng.integers(0, vocab, action)
            turns.append(Turn(history, a, np.concatenate([history, rng.integers(0, vocab, skill)])))
            history = np.concatenate([history, a, rng.integers(0, vocab, observation)])
    return turns


def test_canonical_shape():
    stats = Forest.pack(canonical_turns()).stats()
    assert stats.logical_tokens == 36_096
    assert stats.trained_rows == 2_368 - 4  # the last token of a trajectory predicts nothing
    assert stats.rows == 5_184 - 4 - 32
    assert stats.reuse_ratio > 7


def test_identical_teacher_context_adds_no_rows():
    context, action = np.arange(5), np.arange(3)
    forest = Forest.pack([Turn(context, action, context.copy())])
    assert forest.rows == forest.trained == 7
    assert (forest.teacher_row == forest.student_row).all()


def test_many_branches_off_one_row():
    trunk = np.array([7])
    forest = Forest.pack([Turn(trunk, np.array([i, 1])) for i in range(2000)])
    assert forest.rows == 2001
    assert forest.exit[0] == 2001


def test_empty_forest():
    assert Forest.pack([]).rows == 0


@pytest.mark.parametrize("field", ["context", "action", "teacher_context"])
def test_empty_parts_are_named(field):
    parts = {"context": np.array([1]), "action": np.array([1]), field: np.array([], np.int64)}
    with pytest.raises(ValueError, match=field):
        Turn(**parts)


def test_wrong_length_is_named():
    with pytest.raises(ValueError, match="advantage has 1 values for 2"):
        Turn(np.array([1]), np.array([1, 2]), advantage=np.ones(1, np.float32))


def test_turn_larger_than_the_budget():
    with pytest.raises(ValueError, match="rows_per_micro_batch is 4"):
        split_turns([Turn(np.arange(4), np.arange(3))], 4)
