"""What to buy: goals of a catalogue, split by product, in a fixed shuffled order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import prod
from random import Random
from typing import Literal

import numpy as np

from sprout.seed.envs.webshop.products import Product, Wish

Kind = Literal["synthetic", "human"]
KINDS: tuple[Kind, ...] = ("synthetic", "human")
SHARES = {"train": 0.7, "select": 0.15, "report": 0.15}
NO_LIMIT = 1e6
_LIMITS = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True)
class Goal:
    """Buy `product`, or something like it: with these attributes and option values, at most at the limit."""

    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float


class Goals:
    """The goals of one split. A seed picks one; any prefix of the seeds is a fair sample."""

    def __init__(self, products: Sequence[Product], split: str, kind: Kind = "synthetic") -> None:
        self._wishes = [
            (product, wish)
            for product in products
            if split_of(product.id) == split
            for wish in (product.wishes if kind == "synthetic" else product.human_wishes)
        ]
        counts = [_combinations(product, wish) for product, wish in self._wishes]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._order = np.random.default_rng(0).permutation(sum(counts))

    def __len__(self) -> int:
        return len(self._order)

    def of(self, seed: int) -> Goal:
        """The goal of a seed, modulo their number. Raises ValueError when there are none."""
        if not len(self):
            raise ValueError("no product of this split has an instruction")
        number = int(self._order[seed % len(self)])
        place = int(np.searchsorted(self._ends, number, side="right"))
        product, wish = self._wishes[place]
        return _goal(product, wish, number - (int(self._ends[place - 1]) if place else 0))


def split_of(product_id: str) -> str:
    """The split of a product, fixed for ever by a hash of its id: no product is in two of them."""
    digest = blake2b(f"webshop/{product_id}".encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    return "report"


def price_limit(product: Product) -> float:
    """A round price above the product's, one of the nearest; no limit for what costs about 1,000 and more."""
    above = [limit for limit in _LIMITS if limit > product.price][:4]
    return max(Random(f"limit/{product.id}").sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _combinations(product: Product, wish: Wish) -> int:
    return prod(len(values) for values in product.options.values()) if wish.options is None else 1


def _goal(product: Product, wish: Wish, combination: int) -> Goal:
    text = wish.instruction.strip(".")
    options = wish.options
    if options is None:
        chosen = _options(product, combination)
        options = tuple(chosen.values())
        text += " with " * bool(chosen) + ", and ".join(f"{name}: {value}" for name, value in chosen.items())
    limit = price_limit(product)
    if limit < NO_LIMIT:
        text += f", and price lower than {limit:.2f} dollars"
    return Goal(product, text, wish.attributes, options, limit)


def _options(product: Product, combination: int) -> dict[str, str]:
    """The combination-th choice of one value for every option, names in the order of the alphabet."""
    chosen = {}
    for name in sorted(product.options):
        combination, place = divmod(combination, len(product.options[name]))
        chosen[name] = product.options[name][place]
    return chosen
