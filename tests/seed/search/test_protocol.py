"""Responses and exact match: cases worked by hand, arbitrary text, another agent's transcripts."""

import gzip
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprout.seed.envs.search.exact_match import matches, mentions, normalized
from sprout.seed.envs.search.response import Action, format_response, parse_response

INVALID = Action(None, "")
PIECES = [
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "<information>",
    "x",
    " ",
    "\n",
    "<",
]


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("<search>nile length</search>", Action("search", "nile length")),
        ("<think>a</think>\n<search> nile </search>\n\n", Action("search", "nile")),
        ("<answer>Beijing</answer>", Action("answer", "Beijing")),
        ("I know. <answer>\nNew\nYork </answer> indeed", Action("answer", "New\nYork")),
        ("<search>1 < 2 </</search>", Action("search", "1 < 2 </")),
        ("", INVALID),
        ("the answer is Beijing", INVALID),
        ("<search></search>", INVALID),
        ("<answer> \n </answer>", INVALID),
        ("<search>a", INVALID),
        ("a</search>", INVALID),
        ("</search>a<search>", INVALID),
        ("<search>a</answer>", INVALID),
        ("<search>a</search><answer>b</answer>", INVALID),
        ("<answer>b</answer> <search>a</search>", INVALID),
        ("<search>a</search><search>b</search>", INVALID),
        ("<answer>a</answer><answer>a</answer>", INVALID),
        ("<search>a<search>b</search>", INVALID),
        ("<search><answer>b</answer></search>", INVALID),
        ("<search>a</search><information>made up</information><answer>b</answer>", INVALID),
        ("<SEARCH>a</SEARCH>", INVALID),
        ("<think><search>a</search></think><answer>b</answer>", INVALID),
    ],
)
def test_responses(response, action):
    assert parse_response(response) == action


@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_is_an_action_or_none(response):
    action = parse_response(response)
    tags = re.findall(r"</?(?:search|answer)>", response)
    if action.kind is None:
        assert action == INVALID
    else:
        assert tags == [f"<{action.kind}>", f"</{action.kind}>"]
        assert action.text and action.text == action.text.strip() and action.text in response


@given(st.sampled_from(["search", "answer"]), st.text(), st.text())
def test_what_is_formatted_is_read_back(kind, text, thought):
    plain = not re.search(r"</?(?:search|answer)>", f"{thought}\n{text}")
    if plain:
        wanted = Action(kind, text.strip()) if text.strip() else INVALID
        assert parse_response(format_response(kind, text, thought)) == wanted


def test_another_agents_actions_are_read(shared_data):
    file = shared_data / "search-r1-transcripts.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{file} is not there")
    with gzip.open(file, "rt") as lines:
        transcripts = [json.loads(line) for line in lines]
    right = 0
    for transcript in transcripts:
        said = re.split(r"<information>.*?</information>", transcript["response"], flags=re.DOTALL)
        actions = [parse_response(text) for text in said]
        assert [action.kind for action in actions] == ["search"] * (len(said) - 1) + ["answer"]
        assert all(f"{action.text}" in text for action, text in zip(actions, said, strict=True))
        right += matches(actions[-1].text, transcript["golden_answers"])
    assert 0 < right < len(transcripts)


@pytest.mark.parametrize(
    ("answer", "golden", "right"),
    [
        ("Jesus Christ", ["Jesus Christ"], True),
        ("  the  NILE. ", ["Nile"], True),
        ("180th meridian", ["the 180th meridian", "antimeridian"], True),
        ("A'ja Wilson", ["Aja Wilson"], True),
        ("an apple", ["apple"], True),
        ("anapple", ["apple"], False),
        ("Nile River", ["Nile"], False),
        ("1,000", ["1000"], True),
        ("café", ["cafe"], False),
        ("Nile", [], False),
    ],
)
def test_exact_match(answer, golden, right):
    assert matches(answer, golden) is right


@given(st.text())
def test_normalizing_is_stable(text):
    assert normalized(normalized(text)) == normalized(text)
    assert matches(text, [text, "other"])


def test_mentions_are_whole_words():
    assert mentions("It is THE Nile, they say", ["Amazon", "nile"])
    assert not mentions("juvenile", ["nile"]) and not mentions("anything", ["the"])
