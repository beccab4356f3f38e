"""Demonstrations, reading questions and the tokenizer."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from sprout.engine.chat import ChatFormat
from sprout.seed.envs.household import HouseholdEnv
from sprout.seed.envs.household.analyzer import analyze
from sprout.seed.envs.household.demonstrations import (
    DemonstrationMix,
    demonstration,
    item_rng,
    play_world,
)
from sprout.seed.envs.household.expert import Noise, next_command
from sprout.seed.envs.household.kinds import is_held_out, kind_of
from sprout.seed.envs.household.memory import Memory, parse_task
from sprout.seed.envs.household.reading import reading_questions, reading_reports
from sprout.seed.envs.household.skills import NULL_SKILL, parse_skill
from sprout.seed.envs.household.vocabulary import END, ROLES, build_tokenizer, household_tokenizer, vocabulary
from sprout.seed.envs.household.world import generate_world

TOKENIZER = household_tokenizer()
ANSWER_WORDS = {"was", "is", "not", "found", "seen", "none", "nothing", "in", "or", "other", "them", ".", ","}
ANSWER_WORDS |= {
    "take",
    "it",
    "put",
    "use",
    "lamp",
    "1",
    "with",
    "clean",
    "heat",
    "cool",
    "sink",
    "microwave",
    "fridge",
}


@pytest.fixture(scope="module")
def episodes():
    return [demonstration(0, index) for index in range(400)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(build_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def questions(seed):
    return [item for index in range(80) for item in reading_questions(seed, index)]


def test_questions_about_a_transcript_differ():
    for index in range(20):
        items = reading_questions(0, index)
        assert len({item.transcript for item in items}) == 1
        assert len({item.question for item in items}) == len(items) >= 10


def test_streams_depend_on_seed_and_index_only(episodes):
    assert demonstration(0, 17) == episodes[17] != demonstration(1, 17)
    assert reading_questions(3, 5) == reading_questions(3, 5) != reading_questions(4, 5)


def test_only_train_tasks(episodes):
    for episode in episodes:
        task = parse_task(episode.task)
        assert not is_held_out(task.object_kind, task.target_kind)


def test_history_never_holds_a_skill(episodes):
    for episode in episodes:
        assert episode.steps[0].observation_before == episode.first_observation
        shown = {step.observation_before for step in episode.steps} | {step.action for step in episode.steps}
        assert not shown & {branch.skill for branch in episode.branches}


def test_mix(episodes):
    branches = [branch for episode in episodes for branch in episode.branches]
    share = {
        kind: sum(b.kind == kind for b in branches) / len(branches) for kind in {b.kind for b in branches}
    }
    expected = {"right": 0.3, "analyzed": 0.25, "wrong": 0.1, "irrelevant": 0.2, "null": 0.15}
    assert share == pytest.approx(expected, abs=0.04)
    assert 0.65 < sum(bool(episode.branches) for episode in episodes) / len(episodes) < 0.82
    assert all(b.skill == NULL_SKILL or parse_skill(b.skill) for b in branches)


def test_invalid_actions_stay_in_the_history_and_are_not_imitated(episodes):
    failed = 0
    for episode in episodes:
        for step, following in zip(episode.steps, episode.steps[1:], strict=False):
            if following.observation_before == "nothing happens .":
                failed += 1
                assert step.action not in dict(step.labels)
    assert failed > 50


def test_trunk_labels_do_not_know_where_the_object_is():
    """Hinted play goes straight to the object; its labels still spread over the places not looked into."""
    mix = DemonstrationMix(branched_episodes=1.0, hinted_trunks=1.0)
    first = [demonstration(5, index, mix).steps[0] for index in range(200)]
    shares = [dict(step.labels).get(step.action, 0.0) for step in first]
    assert 0.05 < sum(shares) / len(shares) < 0.25


def test_labels_are_what_the_player_with_that_skill_does(episodes):
    for episode in episodes[:100]:
        task = parse_task(episode.task)
        seen = [step.observation_before for step in episode.steps]
        labelled = [(turn, "", step.labels) for turn, step in enumerate(episode.steps)]
        labelled += [(branch.turn_index, branch.skill, branch.labels) for branch in episode.branches]
        for turn, skill, labels in labelled:
            memory = Memory.of(seen[: turn + 1])
            possible = {next_command(task, memory, Random(i), skill) for i in range(100)}
            assert {command for command, _ in labels} <= possible
            assert sum(share for _, share in labels) == pytest.approx(1)


def test_null_and_irrelevant_branches_keep_the_trunk_labels(episodes):
    for episode in episodes:
        for branch in episode.branches:
            if branch.kind in ("null", "irrelevant"):
                assert branch.labels == episode.steps[branch.turn_index].labels


def test_right_branches_at_the_start_go_where_the_skill_says(episodes):
    firsts = [b for e in episodes for b in e.branches if b.turn_index == 0 and b.kind in ("right", "wrong")]
    assert len(firsts) > 50
    for branch in firsts:
        assert branch.labels == ((f"go to {parse_skill(branch.skill).located[0][1]}", 1.0),)


def test_reading_answers_follow_from_the_transcript():
    for item in questions(seed=1):
        if item.question == "what was the task ?":
            assert item.transcript.startswith(f"task : {item.answer}\n")
        elif item.question == "did it succeed ?":
            assert item.transcript.endswith("success" if item.answer == "yes ." else "failure")
        elif item.question == "how many commands were invalid ?":
            assert item.answer == f"{item.transcript.count('! invalid')} ."
        else:
            words = {*item.transcript.split(), *item.question.split(), *ANSWER_WORDS}
            assert set(item.answer.split()) <= words, item


def test_answers_in_the_language_of_skills_are_true():
    """What a transcript shows holds of its room: a claim about places can be checked like a skill."""
    checked = 0
    for index in range(60):
        world = generate_world("train", item_rng(6, "reading", index).getrandbits(48))
        for item in reading_questions(6, index):
            skill = parse_skill(item.answer)
            if item.question.startswith(("where was", "where can")) and skill is not None:
                checked += 1
                assert all(world.origin[name] == place for name, place in skill.located), item
                for kind, places in skill.absent:
                    of_kind = {place for name, place in world.origin.items() if kind_of(name) == kind}
                    assert not of_kind & set(places), item
    assert checked > 300


def test_reports_pair_the_questions_as_json():
    asked = [item for index in range(20) for item in reading_reports(1, index)]
    pairs = [item for item in asked if item.question.startswith("write json")]
    assert len(pairs) >= 60
    for item in pairs:
        answer = json.loads(item.answer)
        assert list(answer) == ["report", "answer"]
        assert item.question.startswith("write json . report : ") and " answer : " in item.question
        assert all(answer.values())


def test_surveys_ask_for_all_that_was_seen_in_several_orders():
    for index in range(20):
        asked = [item for item in reading_reports(1, index) if item.question.startswith("where was ")]
        longest = max(item.question.count(",") for item in asked)
        surveys = [item for item in asked if item.question.count(",") == longest]
        if longest > 4:
            assert len(surveys) >= 2 and len({item.question for item in surveys}) == len(surveys)
            assert len({tuple(sorted(item.answer.removesuffix(" .").split(" . "))) for item in surveys}) == 1


def test_tokenizer_round_trip_without_unknown_words(tokenizer, episodes):
    texts = set()
    for episode in episodes:
        texts |= {episode.task}
        texts |= {text for step in episode.steps for text in (step.observation_before, step.action)}
        texts |= {f"hint : {branch.skill}" for branch in episode.branches}
    for item in questions(seed=2):
        texts |= {" ".join(item.transcript.split()), f"question : {item.question}", item.answer}
    for seed in range(200):
        played = play_world(generate_world("report", seed), Random(seed), Noise(0.2, 0.2))
        summary, skill = analyze(played.view()).values()
        texts.add(f'{{ " episode_summary " : " {summary} " , " episode_skill " : " {skill} " }}')
    texts |= {HouseholdEnv().system_prompt, *HouseholdEnv.analyzer_instructions.values()}
    assert len(texts) > 3000
    for text in texts:
        ids = tokenizer.encode(text)
        assert tokenizer.unk_token_id not in ids, text
        assert len(ids) <= len(text.split())
        assert tokenizer.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(vocabulary()), max_size=40).map(" ".join))
def test_tokenizer_round_trip_of_any_words(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("take mug 1 from sink 1", ["take", "mug 1", "from", "sink 1"]),
        ("pencil 3 , pen 3.", ["pencil 3", ",", "pen 3", "."]),
        ("mug 4 mug 12", ["mug", "4", "mug", "12"]),
        ("step 1 mug 1 2", ["step", "1", "mug 1", "2"]),
        ("smug 1", ["<unk>", "1"]),
    ],
)
def test_a_name_is_one_token(tokenizer, text, tokens):
    assert tokenizer.tokenize(text) == tokens


def test_tokenizer_marks_unknown_words(tokenizer):
    assert tokenizer.unk_token_id in tokenizer.encode("take zebra 1 from shelf 1")


def test_ordinary_json_is_read_as_tokens(tokenizer):
    ids = tokenizer.encode('{"episode_summary": "found mug 1 .", "episode_skill": "mug 1 is in shelf 1 ."}')
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids).startswith('{ " episode_summary " : " found mug 1 . " ,')


def test_chat_template_composes(tokenizer):
    messages = [{"role": "system", "content": "you act ."}, {"role": "user", "content": "look ."}]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert opened == f"{ROLES[0]} you act . {END} {ROLES[1]} look . {END} {ROLES[2]}"
    answered = [*messages, {"role": "assistant", "content": "look"}]
    closed = tokenizer.apply_chat_template(answered, tokenize=False)
    assert tokenizer.encode(closed) == tokenizer.encode(f"{opened} look {END}")
    assert tokenizer.eos_token == END and tokenizer.bos_token is None


def test_chat_template_is_append_only():
    assert ChatFormat.from_tokenizer(household_tokenizer()).rewrites == ""


def test_vocabulary_is_small_and_without_repetition():
    tokens = vocabulary()
    assert len(tokens) == len(set(tokens)) < 500
