"""Formulas, rewards, responses, splits, the expert, the analyzer and the image."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprout.seed.analyzer.prompt import instructions_of
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.envs import make_env
from sprout.seed.envs.demonstrations import Noise, demonstrate
from sprout.seed.envs.ezpoints import EZPointsEnv
from sprout.seed.envs.ezpoints.cards import RANKS, SHARES, SUITS, Card, deal, hands_of
from sprout.seed.envs.ezpoints.formula import ACTIONS, solutions, value
from sprout.seed.envs.ezpoints.image import paint
from sprout.seed.envs.ezpoints.response import FORMATS, parse_action
from sprout.seed.envs.lessons import view_of


def dealt(numbers, **options):
    """An environment whose hand shows these numbers, and the observation."""
    env = EZPointsEnv(format="plain", **options)
    for seed in range(1000):
        observation, _ = env.reset(seed=seed)
        if tuple(card.number for card in env.hand) == numbers:
            return env, observation
    raise AssertionError(f"no hand of {numbers}")


def play(env, actions):
    return [env.step(action) for action in actions.split()]


def test_a_formula_that_makes_twelve_pays_ten():
    env, observation = dealt((4, 8))
    assert observation.endswith("\nNumbers: 4, 8\nFormula: (empty)")
    turns = play(env, "8 + 4 =")
    assert [turn[1] for turn in turns] == [0, 0, 0, 10]
    assert [turn[2] for turn in turns] == [False, False, False, True]
    assert turns[-2][0].endswith("Formula: 8 + 4") and not turns[-2][-1]["success"]
    assert turns[-1][0].endswith("Formula: 8 + 4\n8 + 4 = 12, as wanted.") and turns[-1][-1]["success"]
    assert all(turn[-1]["valid"] for turn in turns) and turns[0][-1]["family"] == "add"


@pytest.mark.parametrize(
    ("numbers", "actions", "words"),
    [
        ((4, 8), "4 * 8 =", "4 * 8 = 32, not 12."),
        ((4, 8), "4 + =", "4 + is no formula of two numbers."),
        ((4, 8), "=", "(empty) is no formula of two numbers."),
        ((3, 4), "3 + 4 =", "3 + 4 = 7, not 12."),
        ((6, 6), "6 6 =", "6 6 is no formula of two numbers."),
        ((2, 6), "* 2 6 =", "* 2 6 is no formula of two numbers."),
    ],
)
@pytest.mark.parametrize("penalty", [0, 1])
def test_a_wrong_formula_ends_the_game(numbers, actions, words, penalty):
    env, _ = dealt(numbers, penalty=penalty)
    turns = play(env, actions)
    assert [turn[1] for turn in turns] == [0] * (len(turns) - 1) + [-penalty]
    assert turns[-1][2] and not turns[-1][3] and not turns[-1][-1]["success"] and turns[-1][-1]["valid"]
    assert turns[-1][0].endswith(words)


def test_numbers_are_used_as_often_as_cards_show_them():
    env, _ = dealt((6, 6), penalty=1)
    turns = play(env, "6 + 6 6 5 hello 6")
    assert [turn[1] for turn in turns] == [0, 0, 0, -1, -1, -1, -1]
    assert [turn[-1]["valid"] for turn in turns] == [True] * 3 + [False] * 4
    assert turns[-1][-1]["admissible_commands"] == ["+", "*", "="]
    assert turns[-1][0] == turns[2][0]
    assert env.step("=")[1] == 10


def test_turns_run_out():
    env, _ = dealt((6, 6))
    turns = play(env, "6 + 6 7 7 7 7 7")
    assert [turn[3] for turn in turns] == [False] * 7 + [True] and not turns[-1][2]
    assert sum(turn[1] for turn in turns) == 0


@pytest.mark.parametrize(
    ("response", "command", "well_formed"),
    [
        ('{"action": "+"}', "+", True),
        (' {"cards": ["4"], "thoughts": "a {b}", "action": 10}\n', "10", True),
        ('```json\n{"action": "="}\n```', "=", True),
        ('<think>{"action": "3"}</think>{"action": "4"}', "4", True),
        ('I say {"action": "5"}', "5", False),
        ('{"action": "5"} {"action": "6"}', "6", False),
        ('{"action": "5"} {"thought": "6"}', "5", False),
        ('{"a": {"action": "5"}}', "", False),
        ('{"action": true}', "", False),
        ('{"action": ""}', "", False),
        ('{"action": ["5"]}', "", False),
        ('[{"action": "5"}]', "5", False),
        ("5", "", False),
        ("", "", False),
        ("{" * 5000, "", False),
        ('{"a":' * 100_000, "", False),
        ('{"action": ' + "9" * 5000 + "}", "", False),
    ],
    ids=range(17),
)
def test_responses(response, command, well_formed):
    parsed = parse_action(response)
    assert (parsed.command, parsed.well_formed) == (command, well_formed)


def test_formats():
    for format in FORMATS:
        env = EZPointsEnv(format=format)
        env.reset(seed=1)
        info = env.step(env.respond(env.expert_command()))[-1]
        assert info["valid"] and info["well_formed"]
    env = make_env("ezpoints")
    env.reset(seed=1)
    assert json.loads(env.respond("="))["action"] == "="
    info = env.step("=")[-1]
    assert not info["valid"] and not info["well_formed"]
    assert set(instructions_of(env)) == {"success", "failure"}


def test_values_and_solutions():
    assert len(ACTIONS) == 13
    assert value(["10", "+", "2"]) == 12 and value(["3", "*", "4"]) == 12
    assert [value(f) for f in ([], ["12"], ["1", "2"], ["+", "5", "7"], ["5", "=", "7"])] == [None] * 5
    assert solutions((2, 6)) == [["2", "*", "6", "="], ["6", "*", "2", "="]]
    assert solutions((6, 6)) == [["6", "+", "6", "="]] and solutions((1, 10)) == []
    assert [Card(rank, "clubs").number for rank in RANKS] == [1, *range(2, 11), 10, 10, 10]


def test_same_seed_same_episode():
    one, two = EZPointsEnv(), EZPointsEnv()
    for split in SHARES:
        for seed in range(50):
            options = {"split": split}
            assert one.reset(seed=seed, options=options) == two.reset(seed=seed, options=options)
            response = one.respond(one.expert_command())
            assert one.step(response) == two.step(response)
            np.testing.assert_array_equal(one.render(), two.render())
    one.reset(seed=5)
    two.reset(seed=5)
    assert one.reset() == two.reset()


def test_splits_are_disjoint_in_cards_and_complete():
    hands = {split: {frozenset(h) for each in hands_of(split).values() for h in each} for split in SHARES}
    assert sum(map(len, hands.values())) == len(set.union(*hands.values())) == 64 + 5 * 16 + 6
    for split in SHARES:
        assert set(hands_of(split)) == {(2, 10), (3, 9), (4, 8), (5, 7), (6, 6), (2, 6), (3, 4)}
        assert all(frozenset(deal(split, seed)) in hands[split] for seed in range(100))
    with pytest.raises(ValueError, match="unknown split 'test'"):
        deal("test", 0)


def test_the_expert_wins():
    env, families = EZPointsEnv(), set()
    for split in SHARES:
        for seed in range(300):
            turns = list(demonstrate(env, split, seed))
            assert turns[-1].info["success"] and len(turns) == 4 and all(t.info["valid"] for t in turns)
            assert env.skill_is_right(env.oracle_skill()) and not env.skill_is_right("Do 3, then =.")
            families.add(turns[-1].info["family"])
    assert families == {"add", "multiply"}


def test_the_analyzer_solves_what_it_saw():
    env, outcomes = EZPointsEnv(), set()
    for seed in range(200):
        view = view_of(list(demonstrate(env, "train", seed, Noise(random=0.3, invalid=0.1))))
        found = env.scripted_analyzer(view)
        assert env.skill_is_right(found["episode_skill"])
        outcomes.add(view.success)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("numbers", "actions", "summary"),
    [
        ((4, 8), "4 + 8 =", "4 + 8 made 12, with 0 impossible actions on the way."),
        ((4, 8), "4 * 8 =", "The formula 4 * 8 makes 32, not 12."),
        ((4, 8), "4 * =", "The formula 4 * leaves out 8."),
        ((4, 8), "9 9 9 4 = ", "Most actions were not possible: a number was written that no card had left."),
        ((4, 8), "4 8 =", "4 8 is no formula of two numbers."),
        ((4, 8), "4 + 8 + + * * *", "4 + 8 + + * * * is no formula of two numbers."),
        ((4, 8), "4 + 8 9 9", "Most actions were not possible: a number was written that no card had left."),
        ((4, 8), "8 + 4 9", "8 + 4 was right but never ended with =."),
    ],
)
def test_what_the_analyzer_says(numbers, actions, summary):
    env, observation = dealt(numbers)
    steps = []
    for action in actions.split():
        following, _, _, _, info = env.step(action)
        steps.append(TranscriptStep(observation, action, info["valid"]))
        observation = following
    found = env.scripted_analyzer(TrajectoryView("t", tuple(steps), info["success"], observation))
    assert found["episode_summary"] == summary and env.skill_is_right(found["episode_skill"])


@given(st.text(), st.text(), st.booleans())
def test_arbitrary_text_never_crashes(response, observation, success):
    env = EZPointsEnv()
    env.reset(seed=0)
    assert env.step(response)[1] in (0, 10)
    env.skill_is_right(response)
    for shown in (observation, f"Numbers: 4, 8\nFormula: {observation}"):
        view = TrajectoryView("t", (TranscriptStep(shown, response, True),), success, shown)
        assert env.scripted_analyzer(view)["episode_skill"]


def test_wrong_options_are_errors():
    for options in ({"max_turns": 0}, {"format": "xml"}, {"penalty": -1}, {"penalty": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(options))):
            EZPointsEnv(**options)
    with pytest.raises(ValueError, match="call reset"):
        EZPointsEnv().render()


def test_the_image_shows_cards_and_formula():
    env, _ = dealt((2, 6))
    images = [env.render()]
    for action in ("2", "*", "6", "="):
        env.step(action)
        images.append(env.render())
    assert all(image.shape == (300, 300, 3) and image.dtype == np.uint8 for image in images)
    assert len({image.tobytes() for image in images}) == len(images)
    assert all(np.array_equal(images[0][:220], image[:220]) for image in images)
    cards = [Card(rank, suit) for rank in RANKS for suit in SUITS]
    assert len({paint((card, card), []).tobytes() for card in cards}) == 52
    assert len({paint((cards[0], cards[1]), [action]).tobytes() for action in ACTIONS}) == 13
    assert paint((cards[0], cards[1]), ["10"] * 40).shape == (300, 300, 3)
