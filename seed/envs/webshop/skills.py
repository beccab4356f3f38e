"""Skills for the shop: sentences that name actions, which can be checked by carrying them out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sprout.seed.envs.webshop.route import route_to
from sprout.seed.envs.webshop.visit import Visit

_ACTION = re.compile(r"(?:search|click)\[[^\]]+\]")


def write_route(commands: Sequence[str]) -> str:
    """The skill that says: do this, in this order."""
    return f"Do {', then '.join(commands)}."


def oracle_skill(visit: Visit) -> str:
    """The skill of someone who knows which product is wanted."""
    route = route_to(visit.catalogue, visit.goal)
    if not route:
        return f"Look for the {visit.goal.product.title}."
    return write_route(route)


def skill_is_right(skill: str, visit: Visit) -> bool:
    """Whether the actions of `skill`, carried out in their order, earn the visit's full reward."""
    replay = Visit(visit.catalogue, visit.goal)
    for command in _ACTION.findall(" ".join(skill.lower().split())):
        if not replay.execute(command):
            return False
    return replay.score is not None and replay.score.value == 1.0
