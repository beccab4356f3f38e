"""Hands of two cards that make twelve, from (split, seed)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from random import Random

from sprout.seed.envs.ezpoints.formula import TARGET, solutions

SHARES = {"train": 0.7, "select": 0.15, "report": 0.15}
RANKS = ("A", "2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K")
SUITS = ("hearts", "spades", "diamonds", "clubs")


@dataclass(frozen=True)
class Card:
    """A card of a deck of 52. An ace counts 1; jack, queen and king count 10."""

    rank: str
    suit: str

    @property
    def number(self) -> int:
        return min(RANKS.index(self.rank) + 1, 10)

    def __str__(self) -> str:
        return f"{self.rank} of {self.suit}"


Hand = tuple[Card, Card]


def deal(split: str, seed: int) -> Hand:
    """The hand of (split, seed); every pair of numbers that the split has is equally likely.

    Raises ValueError for an unknown split.
    """
    if split not in SHARES:
        raise ValueError(f"unknown split {split!r}; use one of {', '.join(SHARES)}")
    rng, hands = Random(f"ezpoints/{split}/{seed}"), hands_of(split)
    return rng.choice(hands[rng.choice(sorted(hands))])


@cache
def hands_of(split: str) -> dict[tuple[int, ...], list[Hand]]:
    """All hands of a split by their two numbers, the lower first.

    Of each pair of numbers the splits take their shares, by cards without regard to their order. Only seven
    pairs make twelve, so every split has all seven: splits are disjoint in cards, not in sums.
    """
    found: dict[tuple[int, ...], list[Hand]] = {}
    for numbers, pairs in _pairs().items():
        first = 0.0
        for name, share in SHARES.items():
            last = first + share * len(pairs)
            if name == split:
                own = pairs[round(first) : round(last)]
                found[numbers] = [hand for one, two in own for hand in ((one, two), (two, one))]
            first = last
    return found


@cache
def _pairs() -> dict[tuple[int, ...], list[Hand]]:
    """Every two cards that make twelve, in a fixed shuffled order, by their numbers."""
    deck = [Card(rank, suit) for rank, suit in product(RANKS, SUITS)]
    found: dict[tuple[int, ...], list[Hand]] = {}
    for place, one in enumerate(deck):
        for two in deck[place + 1 :]:
            if solutions((one.number, two.number)):
                found.setdefault(tuple(sorted((one.number, two.number))), []).append((one, two))
    for numbers, pairs in found.items():
        Random(f"ezpoints/{TARGET}/{numbers}").shuffle(pairs)
    return found
