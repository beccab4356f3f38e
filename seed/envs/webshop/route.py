"""The shortest way to the product that a goal was made from, for someone who knows it."""

from __future__ import annotations

from functools import lru_cache

from sprout.seed.envs.webshop.catalogue import Catalogue
from sprout.seed.envs.webshop.goals import Goal
from sprout.seed.envs.webshop.pages import PER_PAGE


@lru_cache(maxsize=4096)
def keywords_for(catalogue: Catalogue, goal: Goal) -> str:
    """Keywords that find the product: what the instruction asks for if that is enough, else its title too.

    Of several the first that shows it on the first page, else the one that shows it earliest.
    """
    product = goal.product
    asked = " ".join([*goal.attributes, product.query])
    options = " ".join(goal.options)
    candidates = [" ".join(words.lower().replace("[", " ").replace("]", " ").split()) for words in (
        asked, f"{asked} {options}", f"{asked} {product.title}", product.title
    )]  # fmt: skip
    ranks = [_rank(catalogue, keywords, goal) // PER_PAGE for keywords in candidates]
    return candidates[ranks.index(min(ranks))]


def route_to(catalogue: Catalogue, goal: Goal) -> list[str]:
    """Commands from the search page to the purchase; empty if no keywords find the product."""
    keywords, product = keywords_for(catalogue, goal), goal.product
    found = catalogue.search(keywords)
    if product not in found:
        return []
    shown = {" ".join(value.lower().split()) for values in product.options.values() for value in values}
    chosen = dict.fromkeys(option for option in goal.options if option in shown)
    clicks = ["next >"] * (found.index(product) // PER_PAGE) + [product.id.lower(), *chosen, "buy now"]
    return [f"search[{keywords}]", *(f"click[{name}]" for name in clicks)]


def _rank(catalogue: Catalogue, keywords: str, goal: Goal) -> int:
    found = catalogue.search(keywords)
    return found.index(goal.product) if goal.product in found else len(catalogue.products) + PER_PAGE
