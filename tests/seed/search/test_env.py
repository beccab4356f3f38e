"""The gymnasium environment: an episode by hand, seeds, validity, missing data, analyzer and expert."""

import pytest

from sprout.seed.analyzer.prompt import instructions_of
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.config import load_config
from sprout.seed.envs import environment_class
from sprout.seed.envs import make_env as make_registered
from sprout.seed.envs.search import SearchEnv
from sprout.seed.envs.search.expert import demonstrate
from sprout.seed.envs.search.text import INVALID, NOTHING_FOUND, RIGHT, WRONG


def ask(env, question_id):
    """Reset to the question of an id."""
    for seed in range(4):
        observation, info = env.reset(seed=seed)
        if info["question_id"] == question_id:
            return observation, info
    raise AssertionError(question_id)


def test_registered_by_name(library):
    assert environment_class("search") is SearchEnv
    env = make_registered("search", data=str(library))
    _, info = env.reset(seed=0, options={"split": "train"})
    assert info["task"].endswith("?") and info["family"] in ("rivers", "towns") and info["split"] == "train"
    assert set(instructions_of(SearchEnv)) == {"success", "failure"}
    assert SearchEnv.stop_strings == ("</search>", "</answer>")


def test_an_episode_by_hand(make_env):
    env = make_env(topk=2)
    observation, info = ask(env, "3")
    assert observation == "You have 4 turns left."
    assert info["task"] == "What is the capital of Austria?" and info["valid"] and not info["success"]
    observation, reward, terminated, truncated, info = env.step(
        "<think>a</think><search>capital Austria</search>"
    )
    assert observation == (
        '<information>Doc 1(Title: "Vienna") Vienna is the capital of Austria.</information>\n'
        "You have 3 turns left."
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["valid"], info["well_formed"], info["kind"]) == (True, True, "search")
    assert (info["command"], info["retrieved"]) == ("capital Austria", ["d"])
    observation, reward, terminated, truncated, info = env.step("<answer> the WIEN </answer>")
    assert (observation, reward, terminated, truncated) == (RIGHT, 1.0, True, False)
    assert info["success"] and info["kind"] == "answer" and info["command"] == "the WIEN"
    assert info["retrieved"] == []


def test_a_wrong_answer_ends_without_reward(make_env):
    env = make_env(success_reward=10)
    ask(env, "3")
    assert env.step("<answer>Graz</answer>")[:4] == (WRONG, 0.0, True, False)
    ask(env, "3")
    assert env.step("<answer>Wien</answer>")[1] == 10


def test_invalid_actions_cost_the_turn(make_env):
    env = make_env(max_turns=3)
    ask(env, "3")
    for turn, response in enumerate(["Wien", "<search>a</search><answer>Wien</answer>", "<answer>Wien"]):
        observation, reward, terminated, truncated, info = env.step(response)
        assert observation.startswith(INVALID) and reward == 0 and not terminated
        assert truncated is (turn == 2)
        assert not (info["valid"] or info["well_formed"] or info["success"]) and info["command"] == ""
    assert observation == INVALID


def test_the_last_turn_is_announced_and_still_searches(make_env):
    env = make_env(max_turns=2)
    ask(env, "1")
    assert env.step("<search>zyx</search>")[0] == (
        f"<information>{NOTHING_FOUND}</information>\nThis is your last turn: give your answer."
    )
    observation, _, terminated, truncated, _ = env.step("<search>longest river</search>")
    assert observation.endswith("</information>") and (terminated, truncated) == (False, True)


def test_same_seed_same_episode(make_env):
    one, two = make_env(), make_env()
    for seed in range(4):
        assert one.reset(seed=seed, options={"split": "report"}) == two.reset(
            seed=seed, options={"split": "report"}
        )
        for response in ("<search>river</search>", "x", "<answer>Nile</answer>"):
            assert one.step(response) == two.step(response)
    one.reset(seed=3)
    drawn = [one.reset()[1]["question_id"] for _ in range(6)]
    one.reset(seed=3)
    assert drawn == [one.reset()[1]["question_id"] for _ in range(6)] and len(set(drawn)) > 1


def test_missing_data_says_what_to_download(tmp_path, monkeypatch, library):
    monkeypatch.delenv("SEARCH_DATA", raising=False)
    questions = str(library / "train")
    with pytest.raises(ValueError, match=r"needs its questions, .*wiki-18.*search-index") as error:
        SearchEnv()
    assert "\n" not in str(error.value)
    with pytest.raises(
        ValueError, match=r"needs its passages, and neither env.options.index nor SEARCH_DATA is set"
    ):
        SearchEnv(questions=questions)
    with pytest.raises(ValueError, match=r"nowhere: no such data folder: .*wiki-18"):
        SearchEnv(data=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"has no train or test folder of question files: .*FlashRAG"):
        SearchEnv(data=str(tmp_path))
    with pytest.raises(ValueError, match="holds no search index"):
        SearchEnv(questions=questions, index=str(tmp_path))
    monkeypatch.setenv("SEARCH_DATA", str(library))
    assert SearchEnv().reset(seed=0, options={"split": "report"})[1]["split"] == "report"


def test_errors_name_the_thing(make_env, library):
    with pytest.raises(ValueError, match="max_turns must be at least 1"):
        make_env(max_turns=0)
    with pytest.raises(ValueError, match="topk must be at least 1"):
        make_env(topk=0)
    with pytest.raises(ValueError, match="give index or server, not both"):
        make_env(server="http://localhost:1")
    with pytest.raises(ValueError, match="call reset before step"):
        make_env().step("x")
    with pytest.raises(ValueError, match="unknown split 'test'"):
        make_env().reset(options={"split": "test"})
    with pytest.raises(ValueError, match="does not accept"):
        make_registered("search", speed=3)


def view(env, responses):
    """What an analyzer sees of an episode with these responses."""
    observation, _ = ask(env, "1")
    steps, info = [], {}
    for response in responses:
        after, _, _, _, info = env.step(response)
        steps.append(TranscriptStep(observation, response, info["valid"]))
        observation = after
    return TrajectoryView(info["task"], tuple(steps), info["success"], observation)


@pytest.mark.parametrize(
    ("responses", "said"),
    [
        (["<search>longest river</search>", "<search>river in Africa</search>", "<answer>Nile</answer>"],
         'Search "longest river": the passage "Nile" settles the question.'),
        (["<search>zyx</search>", "<answer>Nile</answer>"], 'Search "zyx" and put the answer together'),
        (["<answer>Nile</answer>"], "no search is needed"),
        (["<answer>Amazon</answer>"], 'Search before you answer: "Amazon" from memory was wrong.'),
        (["<search>river</search>", "<answer>America</answer>"], '"America" stands in the passages but'),
        (["<search>river</search>", "<answer>Oder</answer>"], '"river" did not settle the question, and'),
        (["<search>river</search>"] * 4, 'Keep the last turn for an answer. Do not repeat "river"; search'),
        (["x"], "Search first. End every turn with exactly one search or one answer."),
    ],
)  # fmt: skip
def test_scripted_analyzer(make_env, responses, said):
    found = SearchEnv.scripted_analyzer(view(make_env(), responses))
    assert said in found["episode_skill"] and found["episode_summary"]


def test_expert_wins_every_question(make_env):
    for seed in range(4):
        turns = list(demonstrate(make_env(), "train", seed))
        assert turns[-1][1]["success"] and all(info["valid"] for _, info in turns)
    assert [info["success"] for _, info in demonstrate(make_env(max_turns=1), "train", 0)] == [True]


def test_expert_wins_real_questions(real):
    index, passages, questions = real
    env = SearchEnv(index=str(index), corpus=str(passages), questions=str(questions))
    for seed in range(60):
        *_, (_, info) = demonstrate(env, "train", seed)
        assert info["success"]
    families = {env.reset(seed=seed, options={"split": "select"})[1]["family"] for seed in range(3)}
    assert families == {"nq", "triviaqa", "bamboogle"}


def test_the_papers_recipe_is_valid(library):
    config = load_config("paper/search-qwen2.5-3b", [f"env.options.data={library}"])
    assert (config.env.max_turns, config.rollout.history_layout, config.rollout.history_turns) == (
        4,
        "window",
        4,
    )
    assert config.rollout.max_context_tokens - config.rollout.max_response_tokens == 4096
    assert make_registered(config.env.name, **config.env.options).success_reward == 1
