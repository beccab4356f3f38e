"""Rooms, rewards, splits, the expert, the analyzer and the image."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.analyzer.prompt import instructions_of
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.envs import make_env
from sprout.seed.envs.demonstrations import Noise, demonstrate
from sprout.seed.envs.lessons import view_of
from sprout.seed.envs.response import FORMATS
from sprout.seed.envs.sokoban import SokobanEnv
from sprout.seed.envs.sokoban.levels import SHARES, generate_level, level_of, split_of
from sprout.seed.envs.sokoban.room import SYMBOLS, draw, read

CORRIDOR = """\
# # # # # #
# P X O _ #
# _ _ _ _ #
# # # # # #
# # # # # #
# # # # # #"""
OPEN = """\
# # # # # #
# _ _ _ _ #
# P X _ _ #
# _ _ O _ #
# _ _ _ _ #
# # # # # #"""
TWO = """\
# # # # # #
# P X O _ #
# _ _ _ _ #
# _ X O _ #
# _ _ _ _ #
# # # # # #"""


@pytest.fixture
def env():
    return SokobanEnv(format="plain")


def play(env, moves):
    return [env.step(move) for move in moves.split()]


def test_one_push_wins(env):
    observation, info = env.reset(seed=0, options={"room": CORRIDOR})
    assert observation == CORRIDOR
    assert info["admissible_commands"] == ["down", "right", "still"]
    assert (info["family"], info["success"], info["valid"]) == ("short", False, True)
    ((observation, reward, terminated, truncated, info),) = play(env, "right")
    assert observation.splitlines()[1] == "# _ P √ _ #"
    assert reward == pytest.approx(10.9) and terminated and not truncated and info["success"]


def test_rewards_of_two_boxes(env):
    env.reset(seed=0, options={"room": TWO})
    turns = play(env, "right right down left left down right right up still")
    rewards = [turn[1] for turn in turns]
    assert rewards[:2] == pytest.approx([0.9, -1.1])
    assert [turn[0].splitlines()[1] for turn in turns[:2]] == ["# _ P √ _ #", "# _ _ S X #"]
    assert rewards[2:] == pytest.approx([-0.1 + change for change in changes(turns[1:])])


def changes(turns):
    """Boxes that came onto targets, turn by turn."""
    counts = [turn[0].count("√") for turn in turns]
    return np.diff(counts)


def test_a_move_that_is_not_possible_costs_the_turn(env):
    env.reset(seed=0, options={"room": CORRIDOR})
    for command in ("up", "left", "jump", "", "up up"):
        observation, reward, terminated, truncated, info = env.step(command)
        assert observation == CORRIDOR and reward == pytest.approx(-0.1) and not info["valid"]
        assert not terminated and not truncated
    assert env.step(" Still ")[-1]["valid"]


def test_two_boxes_cannot_be_pushed_at_once(env):
    room = OPEN.replace("P X _", "P X X").replace("_ _ O", "_ O O")
    env.reset(seed=0, options={"room": room})
    ((observation, reward, _, _, info),) = play(env, "right")
    assert observation == room and reward == pytest.approx(-0.1) and not info["valid"]


def test_turns_run_out(env):
    env.reset(seed=0)
    turns = play(env, "still " * 15)
    assert [turn[3] for turn in turns] == [False] * 14 + [True]
    assert sum(turn[1] for turn in turns) == pytest.approx(-1.5)


def test_formats():
    for format in FORMATS:
        env = SokobanEnv(format=format)
        env.reset(seed=1)
        info = env.step(env.respond("still"))[-1]
        assert info["valid"] and info["well_formed"] and info["command"] == "still"
    assert not SokobanEnv().reset(seed=1)[1]["success"]
    env = make_env("sokoban")
    env.reset(seed=1)
    info = env.step("still")[-1]
    assert not info["valid"] and not info["well_formed"]
    assert set(instructions_of(env)) == {"success", "failure"}


def test_same_seed_same_episode():
    one, two = SokobanEnv(format="plain"), SokobanEnv(format="plain")
    for split in SHARES:
        for seed in range(30):
            options = {"split": split}
            assert one.reset(seed=seed, options=options) == two.reset(seed=seed, options=options)
            for move in ("up", "left", "down", "right", "still"):
                assert one.step(move) == two.step(move)
            np.testing.assert_array_equal(one.render(), two.render())
    one.reset(seed=5)
    two.reset(seed=5)
    assert one.reset() == two.reset()


def test_splits_are_disjoint_by_room():
    rooms = {split: {generate_level(split, seed, 1, 15).room for seed in range(200)} for split in SHARES}
    assert all(split_of(room) == split for split, found in rooms.items() for room in found)
    assert all(len(found) > 170 for found in rooms.values())
    with pytest.raises(ValueError, match="unknown split 'test'"):
        generate_level("test", 0, 1, 15)


@pytest.mark.parametrize(("boxes", "max_turns", "seeds"), [(1, 15, 200), (1, 3, 50), (2, 15, 30), (3, 15, 5)])
def test_the_expert_wins(boxes, max_turns, seeds):
    env = SokobanEnv(boxes=boxes, max_turns=max_turns, format="plain")
    for split in SHARES:
        for seed in range(seeds):
            turns = list(demonstrate(env, split, seed))
            assert turns[-1].info["success"] and len(turns) <= max_turns, (split, seed)
            assert all(turn.info["valid"] for turn in turns)
            assert env.skill_is_right(env.oracle_skill()) and not env.skill_is_right("Do up.")


def test_solutions_are_shortest():
    """The backward search against a forward one."""
    for seed in range(20):
        level = generate_level("train", seed, 1, 15)
        reached, moves = {level.start}, 0
        while not any(level.room.is_solved(position) for position in reached):
            following = (level.room.after(p, m) for p in reached for m in level.room.moves(p))
            reached, moves = {position for position in following if position}, moves + 1
        assert moves == len(level.solution()) == level.distances[level.start]
        assert level.room.after(level.start, "still") == level.start


def test_families_are_lengths(env):
    found = {env.reset(seed=seed)[1]["family"] for seed in range(50)}
    assert found == {"short", "medium", "long"}


def test_the_analyzer_solves_what_it_saw(env):
    outcomes = set()
    for seed in range(60):
        view = view_of(list(demonstrate(env, "train", seed, Noise(random=0.6, invalid=0.1))))
        found = env.scripted_analyzer(view)
        assert env.skill_is_right(found["episode_skill"])
        outcomes.add(found["episode_summary"].split(" ")[0])
    assert {"Every", "Turn"} <= outcomes


@pytest.mark.parametrize(
    ("responses", "summary"),
    [
        ("right right up", "Turn 2, right, left a box where it cannot be pushed onto a target."),
        ("left left up", "Most moves were not possible."),
        ("up down up down", "Turns were lost on steps that led nowhere."),
    ],
)
def test_the_analyzer_says_why_a_room_was_lost(env, responses, summary):
    env.reset(seed=0, options={"room": OPEN})
    steps = [TranscriptStep(OPEN, move, move != "left") for move in responses.split()]
    found = env.scripted_analyzer(TrajectoryView("t", tuple(steps), False, None))
    assert found["episode_summary"] == summary
    assert found["episode_skill"] == "Do right, then up, then right, then down."


@given(st.text(), st.text(), st.booleans())
def test_arbitrary_text_never_crashes(response, observation, success):
    env = SokobanEnv()
    env.reset(seed=0)
    assert env.step(response)[1] <= -0.1 + 1e-9
    env.skill_is_right(response)
    view = TrajectoryView("t", (TranscriptStep(observation, response, True),), success, observation)
    assert env.scripted_analyzer(view)["episode_skill"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.sampled_from(SYMBOLS), min_size=6, max_size=6), min_size=6, max_size=6))
def test_any_drawing_is_read_back_or_refused(rows):
    text = "\n".join(" ".join(row) for row in rows)
    found = read(text)
    assert found is None or draw(*found) == text


def test_rooms_that_cannot_be_played_are_errors(env):
    for text, words in ((CORRIDOR[:-1], "6 lines of 6"), (CORRIDOR.replace("X O", "_ √"), "solved already")):
        with pytest.raises(ValueError, match=words):
            level_of(text)
    for options in ({"boxes": 0}, {"boxes": 4}, {"max_turns": 0}, {"format": "xml"}):
        with pytest.raises(ValueError, match=next(iter(options))):
            SokobanEnv(**options)
    with pytest.raises(ValueError, match="call reset"):
        SokobanEnv().render()


def test_the_image_shows_the_room(env):
    env.reset(seed=0, options={"room": TWO})
    images = [env.render()]
    for move in ("right", "right"):
        env.step(move)
        images.append(env.render())
    assert all(image.shape == (96, 96, 3) and image.dtype == np.uint8 for image in images)
    cells = [(16 * row, 16 * column) for row in range(6) for column in range(6)]
    tiles = {image[r : r + 16, c : c + 16].tobytes() for image in images for r, c in cells}
    assert len(tiles) == len(SYMBOLS)
    assert not np.array_equal(images[0], images[1]) and not np.array_equal(images[1], images[2])
