"""No text, however broken, makes a parser fail in another way than with a ValueError."""

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from toy_game import DOMAIN, GRAMMAR, PROBLEM

from sprout.seed.envs.alfworld.game import GameFile, build_game
from sprout.seed.envs.alfworld.grammar import parse_grammar, parse_query, parse_symbols
from sprout.seed.envs.alfworld.interpreter import Interpreter
from sprout.seed.envs.alfworld.pddl import parse_domain, parse_expression, parse_problem
from sprout.seed.envs.response import FORMATS, format_response, parse_response

TAGS = st.sampled_from(
    ["<think>", "</think>", "<action>", "</action>", "go to desk 1", "\n", " ", "<", "é", "ACTION"]
)
PDDL = st.sampled_from(
    ["(", ")", "define", "domain", ":types", ":init", ":goal", ":action", ":effect", "and", "or", "not", "-",
     "?x", "exists", "forall", "when", "imply", "=", "kind", ";", "\n", "(:predicates (p ?x - kind))"]
)  # fmt: skip
SYMBOLS = st.sampled_from([*'{}[]#|;"<>&(),.+: \n\t', "name", "o.name", "p(o:object)", "or", "''", "//"])


@st.composite
def damaged(draw, text):
    """`text` with one piece taken out or doubled."""
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return text[:end] + text[start:] if draw(st.booleans()) else text[:start] + text[end:]


@given(st.one_of(st.text(), st.lists(TAGS).map("".join)), st.sampled_from(FORMATS))
def test_any_response_is_parsed(response, format):
    parsed = parse_response(response, format)
    assert parsed.command == " ".join(parsed.command.lower().split())
    assert parsed.command or not parsed.well_formed


@given(
    st.text(st.characters(categories=["L", "N", "Zs"]), min_size=1).filter(str.strip),
    st.sampled_from(FORMATS),
)
def test_a_written_response_is_read_back(command, format):
    parsed = parse_response(format_response(command, "I think so.", format), format)
    assert parsed.well_formed and parsed.command == " ".join(command.lower().split())


@given(st.one_of(st.text(), st.lists(PDDL).map(" ".join)))
def test_any_pddl(text):
    for parse in (parse_expression, parse_domain, lambda t: parse_problem(t, parse_domain(DOMAIN))):
        with suppress(ValueError):
            parse(text)


@given(st.one_of(st.text(), st.lists(SYMBOLS).map("".join)))
def test_any_grammar(text):
    for parse in (parse_grammar, parse_symbols, parse_query):
        with suppress(ValueError):
            parse(text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_games_play_or_are_refused(data):
    which = data.draw(st.sampled_from(["domain", "problem", "grammar"]))
    texts = {"domain": DOMAIN, "problem": PROBLEM, "grammar": GRAMMAR}
    texts[which] = data.draw(damaged(texts[which]))
    with suppress(ValueError, RecursionError):
        play = Interpreter(build_game(GameFile(None, **texts, walkthrough=(), solvable=True)))
        frame = play.reset()
        for _ in range(6):
            frame = play.step(data.draw(st.sampled_from([*frame.commands, "nonsense"])))
    assert json.dumps(texts)
