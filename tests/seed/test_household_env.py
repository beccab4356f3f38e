"""The household environment, its registration, and how hard it is for scripted players."""

from random import Random

import pytest

from sprout.seed.envs import make_env
from sprout.seed.envs.household import HouseholdEnv
from sprout.seed.envs.household.expert import next_command
from sprout.seed.envs.household.kinds import FAMILIES, SPLITS
from sprout.seed.envs.household.memory import Memory, parse_task
from sprout.seed.envs.household.skills import irrelevant_skill, oracle_skill, wrong_skill
from sprout.seed.envs.household.world import generate_world


def play(env: HouseholdEnv, seed: int, split: str, skill: str = "", habits: bool = False) -> tuple[bool, int]:
    observation, info = env.reset(seed=seed, options={"split": split})
    memory, task, rng = Memory(observation), parse_task(info["task"]), Random(seed)
    turns, ended = 0, False
    while not ended:
        command = next_command(task, memory, rng, skill, habits)
        observation, _, terminated, truncated, info = env.step(command)
        assert info["valid"]
        memory.observe(observation)
        turns, ended = turns + 1, terminated or truncated
    return info["success"], turns


@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_same_play(split):
    for seed in range(20):
        assert play(HouseholdEnv(), seed, split) == play(HouseholdEnv(), seed, split)


def test_unknown_split_is_named():
    with pytest.raises(ValueError, match="unknown split 'test'; use one of train, select, report"):
        HouseholdEnv().reset(seed=1, options={"split": "test"})


def test_environment_protocol():
    env = make_env("household", max_turns=3)
    observation, info = env.reset(seed=7, options={"split": "report"})
    assert observation.startswith("you see") and info["family"] in FAMILIES and info["valid"]
    for turn in range(3):
        observation, reward, terminated, truncated, info = env.step("dance")
        assert (observation, reward, terminated, info["valid"]) == ("nothing happens .", 0.0, False, False)
        assert truncated == (turn == 2)


def test_the_system_prompt_names_every_verb_when_asked_to():
    plain, listed = make_env("household"), make_env("household", commands_listed=True)
    assert listed.system_prompt.startswith(plain.system_prompt) and "commands" not in plain.system_prompt
    verbs = {"go to", "open", "take", "put", "clean", "heat", "cool", "use lamp 1", "look", "inventory"}
    assert all(f" {verb} " in listed.system_prompt for verb in verbs)


def test_environment_draws_a_seed_when_none_is_given():
    env = HouseholdEnv()
    env.reset(seed=5)
    first = [env.reset()[0] for _ in range(3)]
    env.reset(seed=5)
    assert first == [env.reset()[0] for _ in range(3)] and len(set(first)) > 1


def test_reward_comes_once_at_success():
    env = HouseholdEnv()
    observation, info = env.reset(seed=3)
    memory, task, rewards = Memory(observation), parse_task(info["task"]), []
    skill = oracle_skill(generate_world("train", 3))
    while True:
        observation, reward, terminated, truncated, info = env.step(
            next_command(task, memory, Random(0), skill)
        )
        rewards.append(reward)
        memory.observe(observation)
        if terminated or truncated:
            break
    assert terminated and not truncated and info["success"] and rewards == [0.0] * (len(rewards) - 1) + [1.0]


def test_errors_name_the_thing():
    with pytest.raises(ValueError, match=r"unknown environment 'househld'; known: .*household"):
        make_env("househld")
    with pytest.raises(ValueError, match="does not accept"):
        make_env("household", rooms=2)
    with pytest.raises(ValueError, match="max_turns must be at least 1"):
        make_env("household", max_turns=0)
    with pytest.raises(ValueError, match="receptacles must be a range within 8 to 14"):
        make_env("household", receptacles=(3, 9))
    with pytest.raises(ValueError, match="call reset before using the room"):
        HouseholdEnv().step("look")


def test_skills_of_the_current_episode():
    env = HouseholdEnv()
    env.reset(seed=11, options={"split": "select"})
    first = env.oracle_skill()
    assert env.skill_is_right(first) and not env.skill_is_right("go there first .")
    env.step(f"go to {env.world.receptacles[0]}")
    assert env.oracle_skill() == first
    env.reset(seed=12, options={"split": "select"})
    assert env.skill_is_right(env.oracle_skill()) and not env.skill_is_right(first)


@pytest.mark.parametrize("split", SPLITS)
def test_oracle_skill_always_wins_in_few_turns(split):
    env = HouseholdEnv()
    for seed in range(150):
        success, turns = play(env, seed, split, oracle_skill(generate_world(split, seed)))
        assert success and turns <= 13


def test_difficulty_lies_between_blind_search_and_knowledge():
    env = HouseholdEnv()
    seeds = range(400)

    def rate(**options: bool) -> float:
        return sum(play(env, seed, "select", **options)[0] for seed in seeds) / len(seeds)

    blind, habitual = rate(), rate(habits=True)
    assert 0.4 < blind < 0.55
    assert blind + 0.15 < habitual < 0.9


def test_irrelevant_advice_changes_nothing_and_wrong_advice_is_survived():
    env = HouseholdEnv()
    wins = 0
    for seed in range(100):
        world, rng = generate_world("train", seed), Random(seed)
        assert play(env, seed, "train") == play(env, seed, "train", irrelevant_skill(world, rng))
        wins += play(env, seed, "train", wrong_skill(world, rng))[0]
    assert wins > 30
