"""Trajectory records: exact reconstruction, atomic files, errors that name file and line."""

import resource

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.trajectory import Skill, Trajectory, read_trajectories, write_trajectories

ids = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(st.lists(st.tuples(ids, ids), max_size=6))
@settings(max_examples=100, deadline=None)
def test_contexts_are_rebuilt_exactly(make_trajectory, pairs):
    trajectory = make_trajectory(pairs)
    rebuilt = Trajectory.model_validate(orjson.loads(orjson.dumps(trajectory.model_dump())))
    assert rebuilt == trajectory
    assert [context.tolist() for context in rebuilt.contexts()] == [context for context, _ in pairs]


def test_growing_contexts_are_stored_in_linear_space(make_trajectory):
    pairs, context = [], [1] * 50
    for _ in range(40):
        pairs.append((list(context), [2] * 10))
        context += [2] * 10 + [3] * 20
    stored = sum(len(turn.tail) for turn in make_trajectory(pairs).turns)
    assert stored == 50 + 39 * 20


def test_sampler_logprobs_survive_the_file_bit_for_bit(make_trajectory, make_turn, tmp_path):
    logprobs = np.log(np.random.default_rng(0).random(5)).astype(np.float32)
    trajectory = make_trajectory([])
    trajectory.turns.append(make_turn([1], [1] * 5, logprobs=logprobs.tolist()))
    write_trajectories(tmp_path / "t.jsonl", [trajectory])
    (back,) = read_trajectories(tmp_path / "t.jsonl")
    assert np.array_equal(np.asarray(back.turns[0].logprobs, np.float32), logprobs)


def test_skill_and_unknown_reward_survive(make_trajectory, tmp_path):
    skill = Skill(text="open the fridge", summary="s", analyzer="policy", raw="{", tokens=3)
    known = make_trajectory([([1], [2])], skill=skill, teacher_skill="open the fridge")
    unknown = make_trajectory([([1], [2])], reward=float("nan"))
    write_trajectories(tmp_path / "t.jsonl", [known, unknown])
    first, second = read_trajectories(tmp_path / "t.jsonl")
    assert first == known and first.usable
    assert second.reward is None and not second.usable


def test_a_turn_with_another_turns_mask_is_refused(make_turn):
    with pytest.raises(ValueError, match="mask has 2 values for 3 action ids"):
        make_turn([1], [1, 2, 3], mask=[True, True])
    with pytest.raises(ValueError, match="logprobs has 1 values"):
        make_turn([1], [1, 2, 3], logprobs=[0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line[:40], "not a JSON line"),
        (lambda line: line.replace('"schema_version":1', '"schema_version":9'), "schema_version 9; this"),
        (lambda line: "[]", "schema_version None"),
        (lambda line: line.replace('"success":true', '"success":"perhaps"'), "success: "),
        (lambda line: line.replace('"member":0', '"member":0,"colour":1'), "colour: Extra inputs"),
        (lambda line: line.replace('"shared":0', '"shared":5'), "turns.0.shared is 5"),
    ],
)
def test_a_bad_line_is_named(make_trajectory, tmp_path, change, message):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [make_trajectory([([1], [2])])] * 3)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], change(lines[1]), lines[2]]) + "\n")
    reader = read_trajectories(path)
    next(reader)
    with pytest.raises(ValueError, match=r"t\.jsonl:2: ") as caught:
        next(reader)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such trajectory file"):
        next(read_trajectories(tmp_path / "none.jsonl"))


def test_an_interrupted_write_leaves_the_old_file_whole(make_trajectory, tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [make_trajectory([])])
    before = path.read_bytes()

    def interrupted():
        yield make_trajectory([([1], [2])])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trajectories(path, interrupted())
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.jsonl"]


def test_a_full_disk_is_named_and_loses_nothing(make_trajectory, tmp_path):
    path = tmp_path / "t.jsonl"
    write_trajectories(path, [make_trajectory([])])
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cannot write trajectories.*t\.jsonl"):
            write_trajectories(path, [make_trajectory([([1], [2])])] * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.jsonl"]
