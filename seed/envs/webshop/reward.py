"""What a purchase is worth: WebShop's reward (arXiv 2207.01206), as its public code computes it.

    reward = type * (attributes found + options found + [price <= limit]) / (attributes + options + 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from sprout.seed.envs.webshop.colors import plain_color
from sprout.seed.envs.webshop.extra import library
from sprout.seed.envs.webshop.goals import Goal
from sprout.seed.envs.webshop.nouns import nouns
from sprout.seed.envs.webshop.products import Product

SIMILAR = 85  # per cent of the token-set ratio that a match must exceed
_NO_NOUNS = 0.2


@dataclass(frozen=True)
class Score:
    """`value` is the reward; the rest says where it comes from."""

    value: float
    type: float
    attributes: int
    options: int
    price: bool


def score(bought: Product, chosen: Iterable[str], goal: Goal) -> Score:
    """The reward of buying a product with the option values in `chosen`."""
    kind = type_score(bought, goal.product)
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    options = options_found(goal.options, chosen)
    price = bought.price <= goal.price_limit
    parts = len(goal.attributes) + len(goal.options) + 1
    return Score(kind * (attributes + options + price) / parts, kind, attributes, options, price)


def type_score(bought: Product, wanted: Product) -> float:
    """1 for the right type of product, less the less the two have in common: 0.5, 0.1, 0."""
    overlap = title_overlap(bought.title, wanted.title)
    if overlap < 0.1:
        return 0.1 if overlap else 0.0
    if bought.query == wanted.query or overlap > 0.2:
        return 1.0
    return 1.0 if len(_parts(bought.path) & _parts(wanted.path)) >= 2 else 0.5


def title_overlap(bought: str, wanted: str) -> float:
    """Share of the wanted title's nouns that the bought title has; 0.2 if it has none.

    A noun that the wanted title repeats is found once and counted every time, as in the original.
    """
    names = nouns(wanted)
    return len(set(names) & set(nouns(bought))) / len(names) if names else _NO_NOUNS


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether one of the product's attributes is similar, or the attribute stands in its text."""
    return any(similar(one, attribute) for one in product.attributes) or any(
        attribute in words for words in product.words
    )


def options_found(wanted: Iterable[str], chosen: Iterable[str]) -> int:
    """How many of the wanted values are similar to a chosen one, colours reduced to their plain names."""
    values = [plain_color(value) for value in chosen]
    return sum(any(similar(value, plain_color(option)) for value in values) for option in wanted)


def similar(one: str, other: str) -> bool:
    """Token-set ratio above SIMILAR, in whole per cent, of lower-case letters and digits."""
    return round(_ratio()(one, other)) > SIMILAR


@cache
def _ratio() -> Callable[[str, str], float]:
    fuzz, utils = library("rapidfuzz.fuzz"), library("rapidfuzz.utils")
    return lambda one, other: fuzz.token_set_ratio(one, other, processor=utils.default_process)


def _parts(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}
