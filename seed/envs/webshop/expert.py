"""A scripted player that knows which product is wanted: for demonstrations, with as much noise as one likes.

It looks at the page that is shown and decides anew at every turn, so it recovers from whatever happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from sprout.seed.envs.response import Decision, format_response
from sprout.seed.envs.webshop.env import WebshopEnv
from sprout.seed.envs.webshop.pages import PER_PAGE
from sprout.seed.envs.webshop.route import keywords_for, route_to
from sprout.seed.envs.webshop.visit import Visit


@dataclass(frozen=True)
class Noise:
    """Per-turn probabilities of departing from the good command.

    wander   look at another product, or at the details of one, as long as turns are left for it
    invalid  a click on what the page does not show, as long as a turn is left for it
    forget   buy before every option is chosen: the episode fails
    """

    wander: float = 0.0
    invalid: float = 0.0
    forget: float = 0.0

    def __post_init__(self) -> None:
        parts = (self.wander, self.invalid, self.forget)
        if min(parts) < 0 or sum(parts) > 1:
            raise ValueError(f"noise needs probabilities, not {self}")


@dataclass(frozen=True)
class Demonstration:
    """One turn of a scripted episode; `good` is the response without noise, valid on every page."""

    observation: str
    response: str
    good: str
    valid: bool


class Expert:
    """Plays one visit in at most `max_turns` turns, if the goal allows that at all."""

    def __init__(self, visit: Visit, rng: Random, max_turns: int, noise: Noise | None = None) -> None:
        self.visit, self.rng, self.noise = visit, rng, noise or Noise()
        self.keywords = keywords_for(visit.catalogue, visit.goal)
        self.spare = max_turns - len(route_to(visit.catalogue, visit.goal))

    def decide(self) -> Decision:
        """The next command, under the noise."""
        good, draw = self.best(), self.rng.random()
        if draw < self.noise.forget:
            can_buy = "buy now" in self.visit.page.links
            return Decision("click[buy now]", "I buy this.") if can_buy else good
        draw -= self.noise.forget
        cost, options = (1, list(_ABSENT)) if draw < self.noise.invalid else (2, self._detours())
        if draw >= self.noise.invalid + self.noise.wander or self.spare < cost or not options:
            return good
        self.spare -= cost
        return Decision(f"click[{self.rng.choice(options)}]", "I have a look at something else.")

    def best(self) -> Decision:
        """The good next command."""
        visit, wanted = self.visit, self.visit.goal.product
        if visit.product is wanted:
            return self._choose_and_buy()
        if visit.product is not None:
            return Decision("click[< prev]", "This is not what I need.")
        if wanted not in visit.found:
            return Decision(f"search[{self.keywords}]", "I search for what I need.")
        if wanted.id.lower() in visit.page.links:
            return Decision(f"click[{wanted.id.lower()}]", f"The {wanted.title} fits.")
        forward = visit.found.index(wanted) >= PER_PAGE * visit.number
        return Decision("click[next >]" if forward else "click[< prev]", "It is not on this page.")

    def _choose_and_buy(self) -> Decision:
        visit = self.visit
        if "buy now" not in visit.page.links:
            return Decision("click[< prev]", "I have seen enough.")
        for option in visit.goal.options:
            if option in visit.page.links and option not in visit.options.values():
                return Decision(f"click[{option}]", f"I need {option}.")
        return Decision("click[buy now]", "Everything is chosen.")

    def _detours(self) -> list[str]:
        """Clicks that one click on "< Prev" undoes, with no option lost."""
        visit = self.visit
        kinds = {"product"} if visit.product is None else {"detail"}
        return [
            name
            for name, link in visit.page.links.items()
            if link.kind in kinds and name != visit.goal.product.id.lower()
        ]


_ABSENT = ("add to cart", "checkout", "sort by price", "cheapest", "home page")


def demonstrate(
    env: WebshopEnv, split: str, seed: int, noise: Noise | None = None
) -> Iterator[tuple[Demonstration, dict[str, object]]]:
    """Plays one episode with an expert; yields every turn with the info that followed."""
    observation, _ = env.reset(seed=seed, options={"split": split})
    expert = Expert(env.visit, Random(f"{split}/{seed}"), env.max_turns, noise)
    ended = False
    while not ended:
        good, decision = expert.best(), expert.decide()
        said, best = (format_response(d.command, d.thought, env.format) for d in (decision, good))
        following, _, terminated, truncated, info = env.step(said)
        yield Demonstration(observation, said, best, bool(info["valid"])), info
        observation, ended = following, terminated or truncated
