"""What the policy and the analyzer are told."""

from __future__ import annotations

from collections.abc import Sequence

from sprout.seed.envs.ezpoints.cards import Hand
from sprout.seed.envs.ezpoints.formula import TARGET, show, value
from sprout.seed.envs.ezpoints.response import Format

TASK = f"Write a formula that uses the numbers of both cards once and makes {TARGET}."
_ROLE = (
    "You play a card game. You see two cards, their numbers (an ace counts 1; J, Q and K count 10) and a "
    "formula, which you write token by token: one action each turn."
)
_ACTIONS = (
    "Actions: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, +, *, =. A number can be written as often as the cards show it. "
    "= ends the game: it is won if both numbers are used and the formula makes 12. An action that is not "
    "possible changes nothing."
)
_ANSWER: dict[Format, str] = {
    "json": 'Answer with one JSON object and nothing else: {"thoughts": "what you think", "action": "..."}.',
    "plain": "Answer with the action alone.",
}
_ADVICE = (
    'Answer with one JSON object and nothing else: {"episode_summary": "what happened, in one or two '
    'sentences", "episode_skill": "the advice"}. The advice is read by an agent just before it plays with '
    "the same cards: speak to the agent, be short and concrete, name the actions in their order, and do not "
    "retell the episode."
)
ANALYZER_INSTRUCTIONS = {
    "success": "Below is a card game in which an agent wrote a formula that makes 12. Say which actions made "
    "it, in their order, and which can be left out. " + _ADVICE,
    "failure": "Below is a card game in which an agent did not write a formula that makes 12. Find the first "
    "thing that went wrong: the wrong operator, a number that no card shows, a number or the final = "
    "missing, turns lost. Say which actions make 12. " + _ADVICE,
}
_NUMBERS, _FORMULA = "Numbers: ", "Formula: "


def system_prompt(format: Format) -> str:
    """Role, actions, and how to answer."""
    return f"{_ROLE}\n{_ACTIONS}\n{_ANSWER[format]}"


def observation(hand: Hand, formula: Sequence[str]) -> str:
    """Cards, numbers and formula, a line each."""
    numbers = ", ".join(str(card.number) for card in hand)
    return f"Cards: {hand[0]}, {hand[1]}\n{_NUMBERS}{numbers}\n{_FORMULA}{show(formula)}"


def read_numbers(text: str) -> tuple[int, int] | None:
    """The numbers that an observation names; None for any other text."""
    lines = [line.removeprefix(_NUMBERS) for line in text.split("\n") if line.startswith(_NUMBERS)]
    numbers = lines[0].split(", ") if lines else []
    if len(numbers) != 2 or not all(n.isascii() and n.isdigit() and len(n) <= 2 for n in numbers):
        return None
    return int(numbers[0]), int(numbers[1])


def read_formula(text: str) -> list[str]:
    """The tokens of an observation's formula."""
    lines = [line.removeprefix(_FORMULA) for line in text.split("\n") if line.startswith(_FORMULA)]
    return [token for token in lines[0].split() if token != show([])] if lines else []


def verdict(formula: Sequence[str]) -> str:
    """What the formula comes to."""
    found = value(formula)
    if found is None:
        return f"{show(formula)} is no formula of two numbers."
    return f"{show(formula)} = {found}, {'as wanted' if found == TARGET else f'not {TARGET}'}."


def write_actions(actions: Sequence[str]) -> str:
    """The skill that says: do this, in this order."""
    return f"Do {', then '.join(actions)}."
