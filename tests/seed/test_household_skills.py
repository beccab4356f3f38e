"""The skill language, the rule-based analyzer and transcripts."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep, render_transcript
from sprout.seed.envs.household.analyzer import analyze
from sprout.seed.envs.household.demonstrations import play_world
from sprout.seed.envs.household.expert import Noise, invalid_move, random_move
from sprout.seed.envs.household.kinds import LAMP, OBJECT_KINDS, RECEPTACLE_KINDS, kind_of
from sprout.seed.envs.household.memory import Memory
from sprout.seed.envs.household.skills import (
    CAUTIONS,
    NULL_SKILL,
    Skill,
    irrelevant_skill,
    oracle_skill,
    parse_skill,
    skill_is_right,
    write_skill,
    wrong_skill,
)
from sprout.seed.envs.household.world import Task, World, generate_world

places = st.builds(
    lambda kind, number: f"{kind} {number}", st.sampled_from(RECEPTACLE_KINDS), st.integers(1, 3)
)
objects = st.builds(
    lambda kind, number: f"{kind} {number}", st.sampled_from(list(OBJECT_KINDS)), st.integers(1, 3)
)
kinds = st.sampled_from(list(OBJECT_KINDS))


@st.composite
def skills(draw) -> Skill:
    located = tuple(draw(st.lists(st.tuples(objects, places), max_size=2)))
    several = st.lists(places, min_size=1, max_size=5).map(tuple)
    absent = tuple(draw(st.lists(st.tuples(kinds, several), max_size=1)))
    among = tuple(
        draw(st.lists(st.tuples(kinds, st.lists(places, min_size=2, max_size=5).map(tuple)), max_size=1))
    )
    target = draw(st.sampled_from([None, LAMP, "drawer 1", "shelf 2"])) if located else None
    process = draw(st.sampled_from([None, "clean", "heat", "cool"])) if target not in (None, LAMP) else None
    caution = draw(st.sampled_from([None, *CAUTIONS]))
    return Skill(located, absent, among, process, target, caution)


@settings(max_examples=300, deadline=None)
@given(skills())
def test_write_then_parse(skill):
    text = write_skill(skill)
    assert parse_skill(text) == (skill if text else None)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_parsing_other_text_never_fails(text):
    skill = parse_skill(text)
    assert skill is None or write_skill(skill)


@pytest.mark.parametrize(
    "text",
    [
        "",
        NULL_SKILL,
        "mug 1 is in",
        "mug 1 is in shelf 1 . dance .",
        "the mug is in shelf 1 .",
        "put it in shelf 1 .",
    ],
)
def test_text_outside_the_language(text):
    assert parse_skill(text) is None


@pytest.mark.parametrize("split", ["train", "select", "report"])
def test_skills_of_each_sort(split):
    for seed in range(300):
        world, rng = generate_world(split, seed), Random(seed)
        right, wrong, other = oracle_skill(world), wrong_skill(world, rng), irrelevant_skill(world, rng)
        assert skill_is_right(right, world)
        assert not skill_is_right(wrong, world) and parse_skill(wrong).concerns(world.task)
        assert not skill_is_right(other, world) and not parse_skill(other).concerns(world.task)
        assert not skill_is_right(NULL_SKILL, world)
        for text in (right, wrong, other):
            assert write_skill(parse_skill(text)) == text and len(text.split()) <= 34


WORLD = World(
    Task("clean", "mug", "drawer"),
    ["fridge 1", "microwave 1", "drawer 1", "sink 1", "shelf 1", "shelf 2"],
    {"mug 1": "shelf 1", "pen 1": "drawer 1", LAMP: "shelf 2"},
)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("mug 1 is in shelf 1 .", True),
        ("mug 1 is in shelf 1 . take it , clean it with sink 1 , put it in drawer 1 .", True),
        ("mug 1 is in shelf 1 . take it , put it in drawer 1 .", False),
        ("mug 1 is in shelf 1 . take it , heat it with microwave 1 , put it in drawer 1 .", False),
        ("mug 1 is in shelf 1 . take it , clean it with sink 1 , put it in shelf 2 .", False),
        ("mug 1 is in shelf 1 . take it , clean it with sink 1 , put it in drawer 2 .", False),
        ("mug 1 is in shelf 1 . take it , clean it with shelf 1 , put it in drawer 1 .", False),
        ("mug 1 is in shelf 2 .", False),
        ("mug 2 is in shelf 1 .", False),
        ("pen 1 is in drawer 1 .", False),
        ("mug is not in drawer 1 , shelf 2 .", True),
        ("mug is not in drawer 1 , shelf 1 .", False),
        ("mug is not in drawer 3 .", False),
        ("mug is in shelf 1 or shelf 2 .", True),
        ("mug is in shelf 2 or drawer 1 .", False),
        ("go there first .", False),
    ],
)
def test_every_claim_is_checked(text, right):
    assert skill_is_right(text, WORLD) == right


def test_analyzer_is_right_about_whatever_happened():
    """From noisy play of every sort, successes and failures, the written skill makes no false claim."""
    outcomes = set()
    for seed in range(500):
        rng = Random(seed)
        noise = Noise(rng.uniform(0, 0.5), rng.uniform(0, 0.4))
        skill = oracle_skill(generate_world("train", seed)) if seed % 3 == 0 else ""
        played = play_world(generate_world("train", seed), rng, noise, skill)
        written = analyze(played.view())
        parsed = parse_skill(written["episode_skill"])
        assert parsed is not None and write_skill(parsed) == written["episode_skill"]
        assert skill_is_right(written["episode_skill"], generate_world("train", seed)) or not parsed.kinds()
        outcomes.add((played.world.success, bool(parsed.located), bool(parsed.absent), bool(parsed.among)))
    assert len(outcomes) >= 6


def test_analyzer_without_the_final_observation():
    world = generate_world("train", 1)
    played = play_world(generate_world("train", 1), Random(1), Noise(), oracle_skill(world))
    view = played.view()
    withheld = TrajectoryView(view.task, view.steps, view.success)
    assert skill_is_right(analyze(withheld)["episode_skill"], world)


def test_analyzer_of_an_episode_in_which_nothing_was_done():
    world = generate_world("train", 2)
    step = TranscriptStep(world.first_observation, "dance", valid=False)
    skill = analyze(TrajectoryView(world.task.text, (step,), False, "nothing happens ."))["episode_skill"]
    assert skill == "do not repeat a failed command ."
    look = TranscriptStep(world.first_observation, "look")
    skill = analyze(TrajectoryView(world.task.text, (look,), False, world.first_observation))["episode_skill"]
    assert skill == "search other places first ."


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_noise_moves_are_what_they_say(seed, rng):
    world = generate_world("train", seed)
    memory = Memory(world.first_observation)
    for _ in range(25):
        assert not world.execute(invalid_move(world.task, memory, rng)).valid
        outcome = world.execute(random_move(memory, rng))
        assert outcome.valid
        memory.observe(outcome.observation)


def test_transcript_is_complete():
    steps = (
        TranscriptStep("you see bed 1 .", "go to bed 1"),
        TranscriptStep("you are at bed 1 .", "dance", False),
    )
    assert render_transcript("look at pen under lamp .", steps, "failure", "nothing happens .") == (
        "task : look at pen under lamp .\n"
        "step 1 : you see bed 1 .\n> go to bed 1\n"
        "step 2 : you are at bed 1 .\n> dance ! invalid\n"
        "end : nothing happens .\n"
        "outcome : failure"
    )
    assert "end :" not in TrajectoryView("t", steps, True).render()


def test_irrelevant_skills_speak_of_another_kind():
    world = generate_world("train", 5)
    rng = Random(0)
    for _ in range(200):
        assert world.task.object_kind not in {
            kind_of(name) for name, _ in parse_skill(irrelevant_skill(world, rng)).located
        }
