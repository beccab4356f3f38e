"""The shop's rule-based hindsight analyzer: reads a trajectory's text, writes a summary and a skill."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sprout.seed.analyzer.transcript import TrajectoryView
from sprout.seed.envs.response import parse_response
from sprout.seed.envs.webshop.pages import BUY, DETAILS, PREVIOUS, SEPARATOR
from sprout.seed.envs.webshop.skills import write_route
from sprout.seed.envs.webshop.text import COMMANDS_HEAD

_COMMAND = re.compile(r"(search|click)\[(.+)\]")
_LIMIT = re.compile(r", and price lower than ([\d.]+) dollars")
_PRICE = re.compile(r"Price: \$([\d.]+)(?: to \$([\d.]+))?")
_MANY_INVALID = 1 / 3


@dataclass
class Story:
    """What a reader keeps of a visit: the way to the page that is open, without the detours."""

    task: str
    way: list[str] = field(default_factory=list)
    item: list[str] | None = None
    options: list[str] = field(default_factory=list)
    bought: bool = False

    def read(self, page: str, response: str) -> None:
        """Take in a page and what was done there."""
        command = parse_response(response, "action").command or parse_response(response, "plain").command
        match = _COMMAND.fullmatch(command)
        if match is None:
            return
        verb, name = match.groups()
        parts = _parts(page)
        if verb == "search":
            self.way, self.item, self.options = [command], None, []
        elif name == "back to search":
            self.way, self.item, self.options = [], None, []
        elif BUY in parts:
            self._on_item(parts, command, name)
        elif any(part.startswith("Page ") for part in parts):
            self._on_results(command, name)

    def arrive(self, page: str) -> None:
        """Take in the page after the last action."""
        if BUY in _parts(page):
            self.item = _parts(page)

    def missing(self) -> list[str]:
        """Values on the item's page that the task asks for and that were not chosen."""
        if self.item is None:
            return []
        shown = self.item[self.item.index(PREVIOUS) + 1 : self.item.index(BUY) - len(DETAILS) - 3]
        asked = f"{_LIMIT.sub('', self.task).lower()}, and "
        return [value for value in shown if f": {value}, and " in asked and value not in self.options]

    def is_too_dear(self) -> bool:
        """Whether the lowest price on the item's page is above the task's limit."""
        limit = _LIMIT.search(self.task)
        price = _PRICE.search(SEPARATOR.join(self.item or []))
        return limit is not None and price is not None and float(price[1]) > float(limit[1])

    def keywords(self) -> str:
        """The task without options and price."""
        words = _LIMIT.sub("", self.task).lower().removeprefix("find me ")
        return re.sub(r" with [^:]*:.*", "", words)

    def _on_results(self, command: str, name: str) -> None:
        if name == "< prev":
            self.way.pop()
        else:
            self.way.append(command)

    def _on_item(self, parts: list[str], command: str, name: str) -> None:
        self.item = parts
        if name == "< prev":
            self.way, self.item, self.options = self.way[:-1], None, []
        elif name == "buy now":
            self.bought = True
        elif name not in {detail.lower() for detail in DETAILS}:
            self.options.append(name)


def analyze(trajectory: TrajectoryView) -> dict[str, str]:
    """`{"episode_summary": ..., "episode_skill": ...}` from nothing but what the trajectory shows."""
    story = Story(trajectory.task)
    for step in trajectory.steps:
        if step.valid:
            story.read(step.observation, step.response)
    story.arrive(trajectory.final_observation or "")
    summary, skill = _success(story) if trajectory.success else _failure(story, trajectory)
    return {"episode_summary": summary, "episode_skill": skill}


def _parts(page: str) -> list[str]:
    return page.partition(COMMANDS_HEAD)[0].split(SEPARATOR)


def _success(story: Story) -> tuple[str, str]:
    return f"Bought the right product by {story.way[0]}.", _route(story)


def _failure(story: Story, trajectory: TrajectoryView) -> tuple[str, str]:
    invalid = sum(not step.valid for step in trajectory.steps)
    if story.bought:
        return _wrong_purchase(story)
    if invalid > _MANY_INVALID * len(trajectory.steps):
        return "Most actions were not possible.", (
            f"Click only what the page shows. Start with search[{story.keywords()}]."
        )
    if story.item is not None:
        return "Looked at a product but did not buy it in time.", _route(story)
    return "Did not find a product in time.", (
        f"Start with search[{story.keywords()}], open a product whose title and price fit, choose its "
        "options and buy it."
    )


def _wrong_purchase(story: Story) -> tuple[str, str]:
    product = story.way[-1].removeprefix("click[").removesuffix("]")
    if missing := story.missing():
        return f"Bought {product} without choosing {', '.join(missing)}.", _route(story)
    fault = "costs too much" if story.is_too_dear() else "is not quite what the task asks for"
    return f"Bought {product}, which {fault}.", (
        f"Do not buy {product}: it {fault}. Look for another product after search[{story.keywords()}]."
    )


def _route(story: Story) -> str:
    """The way to the item, the options chosen last and those that are missing, and the purchase."""
    chosen = dict.fromkeys([*story.options, *story.missing()])
    return write_route([*story.way, *(f"click[{value}]" for value in chosen), "click[buy now]"])
