"""What the scripted analyzer says of visits, the tokenizer, and the lessons of a small base model."""

import numpy as np
import pytest

from sprout.engine.chat import ChatFormat
from sprout.seed.analyzer.prompt import parse_answer
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.envs.response import format_response
from sprout.seed.envs.webshop import WebshopEnv
from sprout.seed.envs.webshop.analyzer import analyze
from sprout.seed.envs.webshop.expert import Noise, demonstrate
from sprout.seed.envs.webshop.vocabulary import SIZE
from sprout.seed.schema import RolloutSection


@pytest.fixture(scope="module")
def env():
    return WebshopEnv()


@pytest.fixture(scope="module")
def tokenizer(env):
    return env.tokenizer()


@pytest.fixture(scope="module")
def chat(tokenizer):
    return ChatFormat.from_tokenizer(tokenizer)


def analyzed(env, seed, commands):
    """What the analyzer says after `commands` in the task of a seed."""
    observation, info = env.reset(seed=seed)
    steps, success = [], False
    for command in commands:
        said = format_response(command, "I think.", env.format)
        following, _, _, _, now = env.step(said)
        steps.append(TranscriptStep(observation, said, now["valid"]))
        observation, success = following, now["success"]
    return analyze(TrajectoryView(info["task"], tuple(steps), success, observation))


def route(env, seed):
    env.reset(seed=seed)
    return env.oracle_skill().removeprefix("Do ").removesuffix(".").split(", then ")


@pytest.mark.parametrize(
    "options", [{}, {"list_commands": True}, {"format": "plain"}, {"show_instruction": False}]
)
def test_a_success_becomes_its_route_without_detours(options):
    env = WebshopEnv(**options)
    commands = route(env, 0)
    detours = ["search[shoe]", "click[next >]", commands[0], "click[next >]", "click[< prev]", "click[no]"]
    detours += [commands[1], "click[reviews]", "click[< prev]", "click[< prev]", *commands[1:]]
    found = analyzed(env, 0, detours)
    assert found["episode_skill"] == f"Do {', then '.join(commands)}."
    assert env.skill_is_right(found["episode_skill"])


def test_forgotten_options_are_named(env):
    commands = route(env, 0)
    assert len(commands) == 5
    found = analyzed(env, 0, [*commands[:3], commands[-1]])
    forgotten = commands[3].removeprefix("click[").removesuffix("]")
    assert forgotten in found["episode_summary"] and env.skill_is_right(found["episode_skill"])


def test_other_failures(env):
    search, item, *_ = route(env, 0)
    nothing = analyzed(env, 0, ["click[a]", "click[b]", search])
    assert "not possible" in nothing["episode_summary"]
    assert "Did not find" in analyzed(env, 0, [search])["episode_summary"]
    unfinished = analyzed(env, 0, [search, item])
    assert "did not buy" in unfinished["episode_summary"] and env.skill_is_right(unfinished["episode_skill"])
    other = next(product for product in env.catalogue.products if not product.options)
    wrong = analyzed(env, 0, [f"search[{other.title}]", f"click[{other.id}]", "click[buy now]"])
    assert f"Do not buy {other.id.lower()}" in wrong["episode_skill"]


def test_any_episode_can_be_analyzed(env):
    assert analyze(TrajectoryView("", (), False))["episode_skill"]
    odd = TranscriptStep("x [SEP] y", "click[buy now] and more", True)
    assert analyze(TrajectoryView("t", (odd, odd), False, ""))["episode_skill"]


def test_skills_of_expert_play_are_right(env):
    right = 0
    for seed in range(30):
        turns = list(demonstrate(env, "train", seed, Noise(wander=0.2, invalid=0.1, forget=0.1)))
        steps = tuple(TranscriptStep(turn.observation, turn.response, turn.valid) for turn, _ in turns)
        info = turns[-1][1]
        view = TrajectoryView(info["task"], steps, info["success"], env.visit.page.text(None))
        right += env.skill_is_right(analyze(view)["episode_skill"])
    assert right >= 27


def test_a_skill_that_names_nothing_possible_is_not_right(env):
    env.reset(seed=0)
    assert not env.skill_is_right("Do click[buy now].") and not env.skill_is_right("Be quick.")


def test_the_tokenizer(env, tokenizer, chat):
    assert len(tokenizer) <= SIZE and chat.stop_id == tokenizer.eos_token_id
    text = "search[ Ünïcode ☕ ] [SEP] $9.99"
    assert chat.decode(chat.encode(text)) == text
    assert env.tokenizer().get_vocab() == tokenizer.get_vocab()


def test_lessons_depend_on_their_arguments_only(env, chat):
    layout = RolloutSection(history_layout="window", history_turns=2, skill_placement="after_task")
    sizes = {"episodes": 2, "transcripts": 1, "reports": 1}
    first = env.lesson(chat, layout, seed=1, index=3, **sizes)
    env.lesson(chat, layout, seed=1, index=4, **sizes)
    again = WebshopEnv().lesson(chat, layout, seed=1, index=3, **sizes)
    assert all(
        np.array_equal(a.context, b.context) and np.array_equal(a.action, b.action)
        for a, b in zip(first, again, strict=True)
    )
    for turn in first[:-2]:
        assert chat.decode(list(turn.action)).startswith("<think>")
    for turn in first[-2:]:
        assert parse_answer(chat.decode(list(turn.action)[:-1]))[1]
