"""One visit to the shop: from the search page to a purchase."""

from __future__ import annotations

import re

from sprout.seed.envs.webshop import pages
from sprout.seed.envs.webshop.catalogue import Catalogue
from sprout.seed.envs.webshop.goals import Goal
from sprout.seed.envs.webshop.pages import Link, Page
from sprout.seed.envs.webshop.products import Product
from sprout.seed.envs.webshop.reward import Score, score

_COMMAND = re.compile(r"(search|click)\[ ?(\S|\S.*\S) ?\]")


class Visit:
    """The page that is shown, and how commands change it. `score` is None until something is bought.

    `search[keywords]` works on every page, `click[name]` where `name` can be clicked. A search, or going back
    to its results, forgets the options that were chosen; going back to the search page forgets everything.
    """

    def __init__(self, catalogue: Catalogue, goal: Goal) -> None:
        self.catalogue, self.goal = catalogue, goal
        self.score: Score | None = None
        self.found: list[Product] = []
        self.number = 1
        self.product: Product | None = None
        self.options: dict[str, str] = {}
        self.page: Page = pages.search_page()

    def execute(self, command: str) -> bool:
        """Carry out a command that is in lower case with single blanks.

        False, and nothing has changed, for one that is not possible.
        """
        match = _COMMAND.fullmatch(command)
        if match is None or self.score is not None:
            return False
        verb, name = match.groups()
        if verb == "search":
            self.found = self.catalogue.search(name)
            self._show_results(1)
        elif name in self.page.links:
            self._follow(self.page.links[name], name)
        else:
            return False
        return True

    def commands(self) -> list[str]:
        """What is possible on this page; of all searches, where there is a bar, the instruction itself."""
        searches = [f"search[{' '.join(self.goal.instruction.lower().split())}]"]
        return searches * self.page.has_search_bar + [f"click[{name}]" for name in self.page.links]

    def _go_home(self) -> None:
        self.found = []
        self._leave_item(1)
        self.page = pages.search_page()

    def _show_results(self, number: int) -> None:
        self._leave_item(number)
        self.page = pages.results_page(self.found, number)

    def _leave_item(self, number: int) -> None:
        self.number, self.product, self.options = number, None, {}

    def _show_item(self, product: Product) -> None:
        self.product = product
        self.page = pages.item_page(product, self.number)

    def _follow(self, link: Link, name: str) -> None:
        match link:
            case Link("home"):
                self._go_home()
            case Link("results", int(number)):
                self._show_results(number)
            case Link("product", identity):
                self._show_item(next(product for product in self.found if product.id == identity))
            case _:
                assert self.product is not None, "these links stand on pages of a product"
                self._use(self.product, link, name)

    def _use(self, product: Product, link: Link, name: str) -> None:
        if link.kind == "option":
            self.options[str(link.to)] = name
        elif link.kind == "detail":
            self.page = pages.detail_page(product, str(link.to))
        elif link.kind == "item":
            self._show_item(product)
        else:
            self.score = score(product, self.options.values(), self.goal)
            self.page = pages.last_page(self.score.value)
