"""The gymnasium environment: splits, seeds, responses, missing data, the scripted expert."""

import shutil

import numpy as np
import pytest

from sprout.seed.analyzer.prompt import instructions_of
from sprout.seed.config import load_config
from sprout.seed.envs import environment_class, make_env
from sprout.seed.envs.alfworld import AlfworldEnv
from sprout.seed.envs.alfworld import games as games_module
from sprout.seed.envs.alfworld.expert import Noise, demonstrate
from sprout.seed.envs.alfworld.game import GameFileError
from sprout.seed.envs.alfworld.games import SPLITS, list_games
from sprout.seed.envs.response import format_response, parse_response

FAMILIES = {
    "look_at_obj_in_light", "pick_and_place_simple", "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep", "pick_heat_then_place_in_recep", "pick_two_obj_and_place",
}  # fmt: skip


@pytest.fixture
def env(alfworld_data):
    return AlfworldEnv(data=str(alfworld_data), report="valid_seen")


def say(command):
    return format_response(command, "I think.")


def test_registered_by_name(alfworld_data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(alfworld_data))
    assert environment_class("alfworld") is AlfworldEnv
    env = make_env("alfworld", max_turns=2)
    observation, info = env.reset(seed=1)
    assert info["task"] in observation and info["family"] in FAMILIES and info["split"] == "train"
    assert info["valid"] and not info["success"] and "look" in info["admissible_commands"]
    assert set(instructions_of(AlfworldEnv)) == {"success", "failure"}


def test_same_seed_same_episode(env, alfworld_data):
    other = AlfworldEnv(data=str(alfworld_data), report="valid_seen")
    for seed in range(3):
        assert env.reset(seed=seed) == other.reset(seed=seed)
        assert env.step(say("look")) == other.step(say("look"))
    env.reset(seed=3)
    drawn = [env.reset()[1]["game"] for _ in range(3)]
    env.reset(seed=3)
    assert drawn == [env.reset()[1]["game"] for _ in range(3)] and len(set(drawn)) > 1


def test_a_short_panel_holds_every_family(env):
    assert {env.reset(seed=seed, options={"split": "select"})[1]["family"] for seed in range(24)} == FAMILIES


def test_a_long_panel_goes_round(env):
    games = [env.reset(seed=seed, options={"split": "select"})[1]["game"] for seed in (0, 139, 140)]
    assert games[0] == games[2] != games[1]


def test_turns_rewards_and_validity(env, alfworld_data):
    env = AlfworldEnv(data=str(alfworld_data), max_turns=3, success_reward=10)
    env.reset(seed=0)
    for turn, (response, valid, well_formed) in enumerate(
        [(say("look"), True, True), ("<action>look</action>", True, False), ("look", False, False)]
    ):
        _, reward, terminated, truncated, info = env.step(response)
        assert (reward, terminated, truncated) == (0.0, False, turn == 2)
        assert (info["valid"], info["well_formed"]) == (valid, well_formed)
    assert info["command"] == ""


def test_success_pays_once_and_ends(alfworld_data):
    env = AlfworldEnv(data=str(alfworld_data), success_reward=10, format="plain")
    rewards = []
    env.reset(seed=4)
    skill = env.oracle_skill()
    for command in skill.removeprefix("Do this, in this order: ").removesuffix(".").split(", "):
        _, reward, terminated, truncated, info = env.step(command)
        rewards.append(reward)
        assert info["valid"] and not truncated
    assert terminated and info["success"] and rewards == [0.0] * (len(rewards) - 1) + [10.0]


def test_commands_are_listed_on_request(alfworld_data):
    env = AlfworldEnv(data=str(alfworld_data), list_commands=True)
    observation, info = env.reset(seed=0)
    listed = observation.partition("\nPossible now: ")[2].removesuffix(".").split(", ")
    assert listed == [command for command in info["admissible_commands"] if command != "help"]


def test_one_file_can_be_played(env, game_files):
    assert env.reset(options={"game": str(game_files[7])})[1]["game"] == str(game_files[7])


@pytest.mark.parametrize(
    ("response", "command", "well_formed"),
    [
        ("<think>a</think><action>Go to Desk 1</action>", "go to desk 1", True),
        (" <think>a\nb</think>\n<action> look </action>\n", "look", True),
        ("<think>a</think><action>look</action> and more", "look", False),
        ("<think>a</think><action>look</action><action>help</action>", "help", False),
        ("<think><action>help</action></think><action>look</action>", "look", False),
        ("<action>look</action>", "look", False),
        ("<think>a</think><action></action>", "", False),
        ("<think>a</think><action>look", "", False),
        ("look", "", False),
    ],
)
def test_responses_with_thought(response, command, well_formed):
    parsed = parse_response(response)
    assert (parsed.command, parsed.well_formed) == (command, well_formed)


def test_start_up_reads_no_game(alfworld_data, monkeypatch):
    list_games.cache_clear()
    monkeypatch.setattr(games_module, "_scan", None)
    monkeypatch.setattr(games_module, "read_game_file", None)
    AlfworldEnv(data=str(alfworld_data))


def test_missing_data_says_what_to_download(tmp_path, monkeypatch, env):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(ValueError, match=r"ALFWORLD_DATA is not set: .*alfworld-download --data-dir FOLDER"):
        AlfworldEnv()
    with pytest.raises(ValueError, match=r"holds no json_2.1.1/train, .*alfworld-download"):
        AlfworldEnv(data=str(tmp_path))
    with pytest.raises(ValueError, match=r"has no split 'valid_unseen', only train, valid_seen: .*download"):
        env.reset(options={"split": "valid_unseen"})
    (tmp_path / "json_2.1.1" / "train" / "pick-A-None-B-1").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"train has no game.tw-pddl"):
        AlfworldEnv(data=str(tmp_path)).reset()


def test_errors_name_the_thing(env, alfworld_data):
    with pytest.raises(ValueError, match="unknown split 'test'; use one of select, report, train"):
        env.reset(options={"split": "test"})
    with pytest.raises(ValueError, match="format must be one of think, action, plain, not 'xml'"):
        AlfworldEnv(data=str(alfworld_data), format="xml")
    with pytest.raises(ValueError, match="max_turns must be at least 1"):
        AlfworldEnv(data=str(alfworld_data), max_turns=0)
    with pytest.raises(ValueError, match="call reset before step"):
        AlfworldEnv(data=str(alfworld_data)).step("look")


def test_unsolvable_and_broken_games(toy_game, write_game):
    folder, _ = write_game(toy_game | {"solvable": False}, trial="trial_1")
    with pytest.raises(ValueError, match=r"no game of .*train is marked solvable"):
        AlfworldEnv(data=str(folder)).reset()
    list_games.cache_clear()
    write_game(toy_game, trial="trial_2")
    for seed in range(2):
        assert "trial_2" in AlfworldEnv(data=str(folder)).reset(seed=seed)[1]["game"]
    list_games.cache_clear()
    shutil.rmtree(folder / "json_2.1.1" / "train")
    _, path = write_game("{", trial="trial_3")
    with pytest.raises(GameFileError, match=str(path)):
        AlfworldEnv(data=str(folder)).reset()


@pytest.mark.parametrize("noise", [Noise(), Noise(wander=0.2, random_move=0.1, invalid=0.1)])
def test_expert_wins(alfworld_data, noise):
    play_all(alfworld_data, noise, range(0, 240, 12))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [Noise(), Noise(wander=0.3, random_move=0.1, invalid=0.1)])
def test_expert_wins_every_game(alfworld_data, noise):
    play_all(alfworld_data, noise, range(240))
    play_all(alfworld_data, noise, range(140), split="valid_seen")


def play_all(data, noise, seeds, split="train"):
    env = AlfworldEnv(data=str(data), max_turns=60)
    lengths, invalid = [], 0
    for seed in seeds:
        turns = list(demonstrate(env, split, seed, noise))
        assert turns[-1][1]["success"], (split, seed)
        invalid += sum(not turn.valid for turn, _ in turns)
        lengths.append(len(turns))
    quiet = noise == Noise()
    assert (invalid == 0) is quiet
    assert np.mean(lengths) < 8 if quiet else np.mean(lengths) > 7


def test_expert_needs_the_facts(alfworld_data, monkeypatch):
    env = AlfworldEnv(data=str(alfworld_data))
    monkeypatch.setattr(AlfworldEnv, "reset", lambda *_, **__: ("", {}))
    with pytest.raises(ValueError, match="backend=own"):
        next(demonstrate(env, "train", 0))
    assert SPLITS == ("train", "valid_seen", "valid_unseen")


def test_the_papers_recipe_is_valid(alfworld_data, monkeypatch):
    config = load_config("paper/alfworld-qwen2.5-3b", [])
    assert (config.env.max_turns, config.rollout.history_layout, config.rollout.history_turns) == (
        30,
        "window",
        5,
    )
    assert config.rollout.max_context_tokens - config.rollout.max_response_tokens == 2048
    monkeypatch.setenv("ALFWORLD_DATA", str(alfworld_data))
    assert make_env(config.env.name, **config.env.options).success_reward == 10
