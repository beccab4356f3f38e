"""A shop's products with the index that finds them; loaded once a process, shared by all environments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from sprout.seed.envs.webshop.generated import generate_products
from sprout.seed.envs.webshop.goals import Goals, Kind
from sprout.seed.envs.webshop.products import Product
from sprout.seed.envs.webshop.reading import read_products
from sprout.seed.envs.webshop.search import SearchIndex


class Catalogue:
    """Products by number and id, what a search finds among them, and the goals of each split."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = tuple(products)
        self._index = SearchIndex([product.search_text for product in self.products])
        self.goals = lru_cache(maxsize=8)(self._goals)

    def search(self, keywords: str) -> list[Product]:
        """The products that match best, best first, at most 50."""
        return [self.products[number] for number in self._index.search(keywords)]

    def _goals(self, split: str, kind: Kind) -> Goals:
        return Goals(self.products, split, kind)


def load_catalogue(data: str | None, products: int, seed: int) -> Catalogue:
    """The products of a file, else as many generated ones. Raises what `read_products` does."""
    path = Path(data).expanduser() if data is not None else None
    stamp = path.stat().st_mtime_ns if path and path.is_file() else 0  # a file that changes is read again
    return _catalogue(data, products, seed, stamp)


@lru_cache(maxsize=4)
def _catalogue(data: str | None, products: int, seed: int, _stamp: int) -> Catalogue:
    return Catalogue(generate_products(products, seed) if data is None else read_products(data))
