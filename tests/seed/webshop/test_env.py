"""The gymnasium environment: splits, seeds, responses, metrics, missing libraries."""

import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.analyzer.prompt import instructions_of
from sprout.seed.config import load_config
from sprout.seed.envs import environment_class, make_env
from sprout.seed.envs.response import FORMATS, format_response
from sprout.seed.envs.webshop import WebshopEnv
from sprout.seed.envs.webshop.expert import Noise, demonstrate
from sprout.seed.envs.webshop.extra import library
from sprout.seed.envs.webshop.goals import SHARES, price_limit, split_of

CATEGORIES = {"fashion", "beauty", "electronics", "garden", "grocery"}


@pytest.fixture(scope="module")
def env():
    return WebshopEnv()


def say(command):
    return format_response(command, "I think.")


def test_registered_by_name():
    assert environment_class("webshop") is WebshopEnv
    env = make_env("webshop", max_turns=2)
    observation, info = env.reset(seed=1)
    assert observation == f"WebShop [SEP] Instruction: [SEP] {info['task']} [SEP] Search"
    assert info["family"] in CATEGORIES and info["split"] == "train" and info["valid"] and info["score"] == 0
    assert len(info["admissible_commands"]) == 1 and not info["success"]
    assert set(instructions_of(WebshopEnv)) == {"success", "failure"}


def test_same_seed_same_episode(env):
    other = WebshopEnv()
    for seed in range(5):
        assert env.reset(seed=seed) == other.reset(seed=seed)
        for command in ("search[red lamp]", "click[next >]", "click[back to search]", "click[buy now]"):
            assert env.step(say(command)) == other.step(say(command))
    env.reset(seed=3)
    drawn = [env.reset()[1]["task"] for _ in range(3)]
    env.reset(seed=3)
    assert drawn == [env.reset()[1]["task"] for _ in range(3)] and len(set(drawn)) > 1


def test_another_catalogue_seed_is_another_shop(env):
    assert WebshopEnv(catalogue_seed=1).reset(seed=0) != env.reset(seed=0)
    few = WebshopEnv(products=50).catalogue.products
    assert [p.id for p in few] == [p.id for p in env.catalogue.products[:50]]


def test_splits_are_disjoint_by_product(env):
    found = {}
    for split in SHARES:
        goals = env.goals(split)
        found[split] = {goals.of(seed).product.id for seed in range(len(goals))}
        assert all(split_of(name) == split for name in found[split])
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 1000
    assert all(len(products) > 100 for products in found.values())


def test_a_split_goes_round_and_holds_every_combination(env):
    goals = env.goals("report")
    everything = [goals.of(seed) for seed in range(len(goals))]
    assert goals.of(len(goals)) == goals.of(0)
    assert len({(goal.product.id, goal.options) for goal in everything}) == len(goals)
    product = everything[0].product
    combinations = {goal.options for goal in everything if goal.product is product}
    values = (product.options[name] for name in sorted(product.options))
    assert combinations == set(itertools.product(*values))


def test_limits_lie_above_the_price(env):
    for product in env.catalogue.products:
        limit = price_limit(product)
        assert product.price < limit <= product.price + 40 and limit % 10 == 0
        assert product.prices[0] <= product.price <= product.prices[-1]


def test_turns_rewards_and_validity():
    env = WebshopEnv(max_turns=3)
    env.reset(seed=0)
    for turn, (response, valid, well_formed) in enumerate(
        [
            (say("search[Red Lamp]"), True, True),
            ("<action>click[next >]</action>", True, False),
            (say("click[< prev"), False, True),
        ]
    ):
        _, reward, terminated, truncated, info = env.step(response)
        assert (reward, terminated, truncated) == (0.0, False, turn == 2)
        assert (info["valid"], info["well_formed"]) == (valid, well_formed)
    assert say("click[< prev]") == "<think>I think.</think><action>click[< prev]</action>"


def test_a_purchase_pays_its_score_and_ends(env):
    env.reset(seed=0)
    route = env.oracle_skill().removeprefix("Do ").removesuffix(".").split(", then ")
    for command in route[:2]:
        _, reward, terminated, _, _ = env.step(say(command))
        assert reward == 0 and not terminated
    observation, reward, terminated, truncated, info = env.step(say("click[buy now]"))
    assert terminated and not truncated and 0 < reward < 1 and info["score"] == reward and not info["success"]
    assert observation.startswith("Thank you for shopping with us!")
    env.reset(seed=0)
    for command in route:
        _, reward, terminated, truncated, info = env.step(say(command))
    assert terminated and reward == 1.0 and info["success"] and env.skill_is_right(env.oracle_skill())


def test_what_pages_show_is_an_option():
    env = WebshopEnv(show_instruction=False, list_commands=True)
    observation, _ = env.reset(seed=0)
    assert observation == "WebShop [SEP] Search\nPossible now: search[KEYWORDS]."
    observation, *_ = env.step(say("search[zzz]"))
    assert observation.endswith("results: 0)\nPossible now: click[back to search].")


@pytest.mark.parametrize("noise", [Noise(), Noise(wander=0.2, invalid=0.1)])
def test_the_expert_wins(env, noise):
    for split in SHARES:
        play_all(env, split, range(0, len(env.goals(split)), 60), noise)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [Noise(), Noise(wander=0.2, invalid=0.1)])
def test_the_expert_wins_every_goal(env, noise):
    for split in SHARES:
        play_all(env, split, range(len(env.goals(split))), noise)


def play_all(env, split, seeds, noise):
    for seed in seeds:
        turns = list(demonstrate(env, split, seed, noise))
        assert turns[-1][1]["success"], (split, seed)
        assert all(turn.valid for turn, _ in turns) or noise.invalid
        assert len(turns) <= env.max_turns


def test_a_forgetful_expert_fails(env):
    turns = list(demonstrate(env, "train", 0, Noise(forget=1.0)))
    assert not turns[-1][1]["success"] and 0 < turns[-1][1]["score"] < 1


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.sampled_from(FORMATS))
def test_arbitrary_responses(response, format):
    env = WebshopEnv(products=60, format=format)
    env.reset(seed=0)
    search = format_response(f"search[{response}]", "", format)
    for said in (response, f"<action>{response}</action>", search):
        observation, reward, _, _, info = env.step(said)
        assert observation and reward == 0 and not info["success"]


def test_errors_name_the_thing(env):
    with pytest.raises(ValueError, match="unknown split 'test'; use one of train, select, report"):
        env.reset(options={"split": "test"})
    with pytest.raises(ValueError, match="format must be one of think, action, plain, not 'xml'"):
        WebshopEnv(format="xml")
    with pytest.raises(ValueError, match="goals must be one of synthetic, human, not 'all'"):
        WebshopEnv(goals="all")
    with pytest.raises(ValueError, match="max_turns must be at least 1"):
        WebshopEnv(max_turns=0)
    with pytest.raises(ValueError, match="products must be at least 1, not 0"):
        WebshopEnv(products=0)
    with pytest.raises(ValueError, match="call reset before"):
        WebshopEnv().step("look")
    with pytest.raises(ValueError, match="the split 'train' has human instructions"):
        WebshopEnv(goals="human").reset()


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(ImportError, match=r"webshop needs PyStemmer.*pip install 'sprout-rl\[webshop\]'"):
        library("Stemmer")


def test_the_papers_recipe_is_valid():
    config = load_config("paper/webshop-qwen2.5-3b", [])
    assert (config.env.max_turns, config.rollout.history_layout, config.rollout.history_turns) == (
        15, "window", 2,
    )  # fmt: skip
    assert config.rollout.max_context_tokens - config.rollout.max_response_tokens == 4096
    assert make_env(config.env.name, **config.env.options).max_turns == 15
