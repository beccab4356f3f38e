"""The policy as analyzer: what a small decoder that has learnt one answer writes, and what is refused."""

import pytest
import torch

from sprout.engine.forest import Forest
from sprout.engine.generator import Generator
from sprout.engine.supervised import supervised_nll, token_weights
from sprout.seed.analyzer.policy import OVERFLOW, PolicyAnalyzer
from sprout.seed.analyzer.prompt import skill_turn
from sprout.seed.trajectory import Skill

WORDS = {"success": "task success", "failure": "task failure"}
LEARNT = Skill(text="open the fridge . put it in .", summary="you see a mug .", analyzer="teacher")


@pytest.fixture(scope="module")
def played(make_trajectory, make_turn):
    def build(response="take a mug", success=True, member=0):
        trajectory = make_trajectory([], task="put a mug in the fridge .", success=success, member=member)
        trajectory.turns.append(make_turn([1], [2], observation="you see a mug .", response=response))
        return trajectory

    return build


@pytest.fixture(scope="module")
def generator(word_chat, make_decoder, played):
    """A generator whose decoder answers every prompt with LEARNT."""
    turns = [skill_turn(played(success=won), LEARNT, word_chat, WORDS) for won in (True, False)]
    decoder = make_decoder(64)
    optimizer = torch.optim.Adam(decoder.parameters(), 0.01)
    forest, weight = Forest.pack(turns), torch.cat(token_weights(turns))
    for _ in range(60):
        optimizer.zero_grad()
        supervised_nll(decoder, forest, weight).backward()
        optimizer.step()
    return Generator(decoder, stop_id=word_chat.stop_id, cache_tokens=2000)


def analyzer_of(generator, chat, max_new_tokens=60, max_context_tokens=300):
    return PolicyAnalyzer(
        generator, chat, WORDS, max_new_tokens=max_new_tokens, max_context_tokens=max_context_tokens
    )


def test_a_learnt_answer_becomes_a_skill(generator, word_chat, played):
    skills = analyzer_of(generator, word_chat).analyze([played(), played(success=False, member=1)])
    for skill in skills:
        assert (skill.valid, skill.text, skill.summary) == (True, LEARNT.text, LEARNT.summary)
        assert skill.tokens == len(word_chat.encode(LEARNT.text)) and skill.analyzer == "policy"
    generator.reset()


def test_a_prompt_that_does_not_fit_is_invalid_and_the_others_are_not_disturbed(generator, word_chat, played):
    batch = [played(), played(response="take a mug " * 100, member=1), played(success=False, member=2)]
    skills = analyzer_of(generator, word_chat).analyze(batch)
    assert [skill.valid for skill in skills] == [True, False, True]
    assert skills[1].problem == OVERFLOW


def test_an_answer_that_is_cut_is_invalid_and_kept(generator, word_chat, played):
    (skill,) = analyzer_of(generator, word_chat, max_new_tokens=8).analyze([played()])
    assert not skill.valid and "cut" in skill.problem and "episode_summary" in skill.raw


def test_a_response_that_cannot_be_encoded_as_text_is_a_named_problem(generator, word_chat, played):
    (skill,) = analyzer_of(generator, word_chat).analyze([played(response="take zebra")])
    assert not skill.valid and "zebra" in skill.problem


def test_nothing_to_analyze(generator, word_chat):
    assert analyzer_of(generator, word_chat).analyze([]) == []
