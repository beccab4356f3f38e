"""Formulas of two numbers: their tokens, their value, and those that make twelve."""

from __future__ import annotations

from collections.abc import Sequence

TARGET = 12
NUMBERS = tuple(str(number) for number in range(1, 11))
OPERATORS = ("+", "*")
EQUALS = "="
ACTIONS = (*NUMBERS, *OPERATORS, EQUALS)


def value(formula: Sequence[str]) -> int | None:
    """What `number operator number` comes to; None for any other tokens."""
    if len(formula) != 3 or formula[1] not in OPERATORS:
        return None
    if formula[0] not in NUMBERS or formula[2] not in NUMBERS:
        return None
    one, two = int(formula[0]), int(formula[2])
    return one + two if formula[1] == "+" else one * two


def solutions(numbers: tuple[int, int]) -> list[list[str]]:
    """Every way to make twelve of both numbers, as the actions to take, in the order of the cards first."""
    one, two = (str(number) for number in numbers)
    formulas = [
        [a, operator, b] for a, b in dict.fromkeys([(one, two), (two, one)]) for operator in OPERATORS
    ]
    return [[*formula, EQUALS] for formula in formulas if value(formula) == TARGET]


def unused(numbers: Sequence[int], formula: Sequence[str]) -> list[str]:
    """Numbers on the cards that the formula has not taken yet."""
    left = [str(number) for number in numbers]
    for token in formula:
        if token in left:
            left.remove(token)
    return left


def show(formula: Sequence[str]) -> str:
    """The tokens with blanks between them."""
    return " ".join(formula) or "(empty)"
