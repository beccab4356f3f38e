"""What the policy and the analyzer are told beside the room."""

from __future__ import annotations

from collections.abc import Sequence

from sprout.seed.envs.response import Format, how_to_answer

TASK = "Push every box onto a target."
_ROLE = (
    "You play Sokoban. Every turn you see a room as rows of symbols and answer with one move. Symbols: "
    "# wall, _ floor, O target, X box, P you, √ box on a target, S you on a target."
)
_ACTIONS = (
    "Moves: up, down, left, right, still. You move by one cell; a box in the way is pushed by one cell if "
    "the cell behind it is free. Boxes cannot be pulled, nor two pushed at once: do not push a box into a "
    "corner or against a wall that it must leave again. A move that is not possible changes nothing."
)
_ADVICE = (
    'Answer with one JSON object and nothing else: {"episode_summary": "what happened, in one or two '
    'sentences", "episode_skill": "the advice"}. The advice is read by an agent just before it plays the '
    "same room: speak to the agent, be short and concrete, name the moves in their order, and do not "
    "retell the episode."
)
ANALYZER_INSTRUCTIONS = {
    "success": "Below is an episode of Sokoban in which an agent put every box onto a target. Say from which "
    "side and in which order the boxes are pushed, and which moves can be left out. " + _ADVICE,
    "failure": "Below is an episode of Sokoban in which an agent did not put every box onto a target. Find "
    "the first thing that went wrong: a push after which a box cannot reach a target, moves against walls, "
    "steps that led nowhere. Say how to solve the room instead. " + _ADVICE,
}


def system_prompt(format: Format) -> str:
    """Role, moves, and how to answer."""
    return f"{_ROLE}\n{_ACTIONS}\n{how_to_answer('move', format)}"


def write_moves(moves: Sequence[str]) -> str:
    """The skill that says: make these moves, in this order."""
    return f"Do {', then '.join(moves)}."
