"""The shop's pages: the text that is visible, and what can be clicked on it.

Pages say what those of WebShop's text mode say, in the same order; the last one leaves out its payment code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from sprout.seed.envs.webshop.products import Product

SEPARATOR = " [SEP] "
PER_PAGE = 10
HOME, NEXT, PREVIOUS, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
DETAILS = ("Description", "Features", "Reviews")


class Link(NamedTuple):
    """Where a click leads: to the page that `kind` names; `to` says which one, or which option is chosen."""

    kind: Literal["home", "results", "product", "option", "detail", "item", "buy"]
    to: int | str = ""


@dataclass(frozen=True)
class Page:
    """`parts` are the pieces of text; `links` are by what is clicked, in lower case with single blanks."""

    parts: tuple[str, ...]
    links: Mapping[str, Link]
    has_search_bar: bool = False

    def text(self, instruction: str | None) -> str:
        """All pieces joined by SEPARATOR, below the instruction if one is given."""
        name = ("WebShop",) if self.has_search_bar else ()
        above = () if instruction is None else ("Instruction:", instruction)
        return SEPARATOR.join((*name, *above, *self.parts))


def search_page() -> Page:
    """Where a visit begins."""
    return Page(("Search",), {}, has_search_bar=True)


def results_page(found: Sequence[Product], number: int) -> Page:
    """Page `number` (from 1) of the products found."""
    links = {HOME: Link("home")}
    if number > 1:
        links[PREVIOUS] = Link("results", number - 1)
    if number * PER_PAGE < len(found):
        links[NEXT] = Link("results", number + 1)
    parts = [HOME, f"Page {number} (Total results: {len(found)})", *list(links)[1:]]
    for product in found[(number - 1) * PER_PAGE : number * PER_PAGE]:
        parts += [product.id, product.title, product.price_text]
        links[product.id] = Link("product", product.id)
    return Page(tuple(parts), _by_plain_name(links))


@lru_cache(maxsize=4096)
def item_page(product: Product, back_to: int) -> Page:
    """A product with its options; it looks the same whatever has been chosen.

    Among links of one name the option's is the one that counts, and the later option's of two.
    """
    links = {HOME: Link("home"), PREVIOUS: Link("results", back_to)}
    links |= {detail: Link("detail", detail) for detail in DETAILS} | {BUY: Link("buy")}
    parts = [HOME, PREVIOUS]
    for name, values in product.options.items():
        parts += [name, *values]
        links |= {value: Link("option", name) for value in values}
    parts += [product.title, f"Price: {product.price_text}", f"Rating: {product.rating}", *DETAILS, BUY]
    return Page(tuple(parts), _by_plain_name(links))


@lru_cache(maxsize=4096)
def detail_page(product: Product, detail: str) -> Page:
    """One of DETAILS of a product."""
    texts = {
        "Description": (product.description,) if product.description else (),
        "Features": product.features,
        "Reviews": product.reviews,
    }
    shown = texts[detail] or (f"No {detail.lower()} found",)
    links = {HOME: Link("home"), PREVIOUS: Link("item")}
    return Page((HOME, PREVIOUS, *shown), _by_plain_name(links))


def last_page(reward: float) -> Page:
    """What a purchase leads to; nothing can be clicked any more."""
    return Page(("Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", f"{reward:.4g}"), {})


def _by_plain_name(links: Mapping[str, Link]) -> dict[str, Link]:
    return {" ".join(name.lower().split()): link for name, link in links.items()}
