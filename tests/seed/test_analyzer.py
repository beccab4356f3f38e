"""Analyzers: prompts that are never cut, answers that parse or do not, skills from rules and files."""

import json
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprout.seed.analyzer.given import ScriptedAnalyzer, StaticAnalyzer
from sprout.seed.analyzer.policy import OVERFLOW
from sprout.seed.analyzer.prompt import (
    INSTRUCTIONS,
    format_answer,
    instructions_of,
    language_model_instructions,
    parse_answer,
    prompt_ids,
    skill_turn,
    view_of,
)
from sprout.seed.analyzer.quality import delta_by_outcome, grounding, named_things, repeat_rate, skill_metrics
from sprout.seed.trajectory import Skill

PIECES = [*'{}[],: "\\', "<think>", "</think>", '"episode_summary"', '"episode_skill"', '"a"', "null", "1"]
WORDS = {"success": "task success", "failure": "task failure"}


@pytest.fixture
def played(make_trajectory, make_turn):
    def build(success=True, observations=("you see a mug .", "open it ."), **fields):
        turns = [make_turn([1], [2], observation=o, response="take pen 1") for o in observations]
        trajectory = make_trajectory([], task="put a mug in the fridge .", success=success, **fields)
        return trajectory.model_copy(update={"turns": turns, "final_observation": "shelf 2 is here ."})

    return build


def test_prompt_holds_everything_and_the_instruction_of_the_outcome(word_chat, played):
    for success in (True, False):
        text = word_chat.decode(prompt_ids(played(success), word_chat, WORDS))
        assert WORDS["success" if success else "failure"] in text
        for part in ("put a mug in the fridge", "you see a mug", "open it", "take pen 1", "shelf 2 is here"):
            assert part in text
    hidden = word_chat.decode(prompt_ids(played(), word_chat, WORDS, terminal_observation=False))
    assert "shelf 2 is here" not in hidden


def test_invalid_actions_are_marked(played):
    trajectory = played()
    trajectory.turns[0].admissible = False
    lines = view_of(trajectory).render().splitlines()
    assert [("invalid" in line) for line in lines if line.startswith(">")] == [True, False]


def test_a_language_model_is_told_what_its_answer_looks_like():
    class Says:
        analyzer_instructions = {name: f"{text} episode_skill" for name, text in WORDS.items()}  # noqa: RUF012

    class SaysNot:
        analyzer_instructions = WORDS

    assert language_model_instructions(Says) is Says.analyzer_instructions
    assert language_model_instructions(SaysNot) is INSTRUCTIONS


def test_environments_bring_their_own_instructions():
    class Own:
        analyzer_instructions = WORDS

    class Half:
        analyzer_instructions = {"success": "x"}  # noqa: RUF012

    assert instructions_of(Own) is WORDS
    assert instructions_of(object()) is INSTRUCTIONS
    with pytest.raises(ValueError, match="needs the keys failure, success, not success"):
        instructions_of(Half)


@pytest.mark.parametrize(
    "text",
    [
        format_answer("s .", "open it ."),
        "```json\n" + format_answer("s .", "open it .") + "\n```",
        "<think> a draft {} </think> " + format_answer("s .", "open it ."),
        '{ " episode_summary " : " s . " , " episode_skill " : " open it . " }',
        'Set {x} first. {"episode_skill": "open it .", "episode_summary": "s .", "more": 1} done',
    ],
)
def test_answers_that_parse(text):
    assert parse_answer(text) == ("s .", "open it .")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("open it .", "no JSON object"),
        ('{"episode_summary": "s", "episode_skill": "open', "no JSON object"),
        ('{"episode_summary": "s"}', "episode_skill is missing"),
        ('{"episode_skill": "s"}', "episode_summary is missing"),
        ('{"episode_summary": "s", "episode_skill": ["a"]}', "episode_skill is not a string"),
        ('{"episode_summary": "s", "episode_skill": "  "}', "episode_skill is empty"),
        ('["episode_skill"]', "no JSON object"),
    ],
)
def test_answers_that_do_not_parse(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_answer(text)


@pytest.mark.parametrize("deep", ['{"a":' * 5000, '{"a": ' + "[" * 5000, '{"a": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize("repair", [None, json.loads])
def test_answers_that_no_parser_can_follow(deep, repair):
    with pytest.raises(ValueError, match=r"no JSON object|Expecting|Exceeds"):
        parse_answer(deep, repair)
    assert parse_answer(deep + format_answer("a", "b")) == ("a", "b")


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_answer_is_a_skill_or_a_value_error(text):
    with suppress(ValueError):
        _, skill = parse_answer(text)
        assert skill == skill.strip() != ""


def test_answer_format_survives_a_word_level_tokenizer():
    skill = 'open "it" . \n then take'
    assert parse_answer(format_answer("a", skill)) == ("a", skill)
    assert json.loads(format_answer("a", skill))["episode_skill"] == skill


def test_stage_1_pair_trains_the_answer_alone(chat, played):
    turn = skill_turn(played(), Skill(text="open it .", summary="you see", analyzer="x"), chat, WORDS)
    assert turn.context.tolist() == prompt_ids(played(), chat, WORDS)
    assert turn.action[-1] == chat.stop_id
    assert "open it ." in chat.decode(turn.action.tolist())


def test_scripted_analyzer_delegates_to_the_environment(chat, played):
    class Env:
        @staticmethod
        def scripted_analyzer(view):
            return {"episode_summary": view.task, "episode_skill": "open it ." if view.success else ""}

    good, bad = ScriptedAnalyzer(Env, chat).analyze([played(True), played(False)])
    assert good.valid and good.text == "open it ." and good.tokens == len(chat.encode("open it ."))
    assert not bad.valid
    with pytest.raises(ValueError, match="no scripted_analyzer"):
        ScriptedAnalyzer(object, chat)


def test_static_analyzer_reads_skills_by_family(chat, tmp_path, played):
    path = tmp_path / "skills.yaml"
    path.write_text("clean: open it\ndefault: take it\n")
    analyzer = StaticAnalyzer(path, chat)
    texts = [skill.text for skill in analyzer.analyze([played(family="clean"), played(family="heat")])]
    assert texts == ["open it", "take it"]
    path.write_text("clean: open it\n")
    with pytest.raises(ValueError, match="no skill for family 'heat'"):
        StaticAnalyzer(path, chat).analyze([played(family="heat")])
    path.write_text("- a\n")
    with pytest.raises(ValueError, match="expected a mapping"):
        StaticAnalyzer(path, chat)
    with pytest.raises(FileNotFoundError, match="static_path"):
        StaticAnalyzer(tmp_path / "none.yaml", chat)


def test_static_analyzer_without_a_file_takes_the_environments_own_skills(chat, played):
    class Env:
        static_skills: ClassVar = {"default": "look here"}

    assert StaticAnalyzer(None, chat, Env).skill("heat").text == "look here"
    with pytest.raises(ValueError, match=r"brings no static_skills; set analyzer.static_path"):
        StaticAnalyzer(None, chat, object)


def test_repeat_rate_sees_loops():
    assert repeat_rate("open the fridge and take the mug") == 0
    assert repeat_rate("open it now please " * 10) > 0.8
    assert repeat_rate("short text") == 0


def test_grounding_is_the_share_of_names_that_were_seen(played):
    trajectory = played(observations=("you see mug 1 and cabinet 12 .",))
    assert named_things('go to Mug 1, then search[red shoes] and "blue" `x y`') == {
        "mug 1", "search[red shoes]", "blue", "x y",
    }  # fmt: skip
    assert grounding("take mug 1 , open cabinet 1", trajectory, named_things) == 0.5
    assert grounding("take pen 1", trajectory, named_things) == 1
    assert grounding("do it well", trajectory, named_things) is None


def test_skill_metrics_count_every_kind(played):
    batch = [played() for _ in range(4)]
    skills = [
        Skill(text="take pen 1", analyzer="x", tokens=3),
        Skill(text="take mug 9", analyzer="x", tokens=5),
        Skill(valid=False, analyzer="x", problem=OVERFLOW),
        Skill(valid=False, analyzer="x", problem="no JSON object in the answer"),
    ]
    assert skill_metrics(batch, skills) == {
        "seed/skill_valid_rate": 0.5,
        "seed/skill_overflow_rate": 0.25,
        "seed/skill_tokens": 4,
        "seed/skill_repeat_rate": 0,
        "seed/skill_grounding": 0.5,
    }
    assert skill_metrics([], [])["seed/skill_valid_rate"] == 0


def test_delta_is_split_by_outcome():
    deltas = [np.array([1.0, 3.0]), None, np.array([-1.0])]
    means = delta_by_outcome(deltas, [True, True, False])
    assert means == {"seed/delta_success": 2, "seed/delta_failure": -1}
    assert delta_by_outcome([None], [True]) == {}
