"""A product of the shop: what its pages show, what a search finds, what a purchase is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

MISSING_PRICE = 100.0


@dataclass(frozen=True)
class Wish:
    """An instruction that a product fulfils. `options` None: any combination of the product's options."""

    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """`category` is the product's family, `path` its place in the shop's tree, parts joined by ' › ';
    `prices` holds one price in dollars, or the lowest and the highest; `options` maps a name to its values.
    """

    id: str
    title: str
    category: str
    query: str
    path: str
    prices: tuple[float, ...] = (MISSING_PRICE,)
    rating: str = "N.A."
    description: str = ""
    features: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wishes: tuple[Wish, ...] = ()
    human_wishes: tuple[Wish, ...] = ()

    @property
    def price_text(self) -> str:
        """`"$a"` or `"$a to $b"`."""
        return " to ".join(f"${price}" for price in self.prices)

    @cached_property
    def price(self) -> float:
        """What the product costs, in dollars: within its range, the same in every shop that has it."""
        return self.prices[0] if len(self.prices) == 1 else Random(self.id).uniform(*self.prices)

    @cached_property
    def search_text(self) -> str:
        """What a search looks at: title, description, first feature and options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.features[:1], options]).lower()

    @cached_property
    def words(self) -> tuple[str, str, str]:
        """Title, features and description in lower case: where attributes are looked for."""
        return self.title.lower(), " ".join(self.features).lower(), self.description.lower()
