"""What the policy and the analyzer are told beside the shop's own pages."""

from __future__ import annotations

from collections.abc import Sequence

from sprout.seed.envs.response import Format, how_to_answer

_ROLE = (
    "You shop on a web site that is shown to you as text, its pieces separated by [SEP]. Every turn "
    "you read a page and answer with one action, until you have bought what the instruction asks for."
)
_ACTIONS = (
    "Actions: search[KEYWORDS] looks for products; click[NAME] clicks something that the page shows: "
    "the id of a product, the value of an option, Next >, < Prev, Description, Features, Reviews, "
    "Back to Search, Buy Now. Choose the right value of every option before you buy. Buying ends the "
    "visit: the score is highest when product, attributes, options and price are all as asked for. An"
    " action that is not possible changes nothing."
)
_ADVICE = (
    'Answer with one JSON object and nothing else: {"episode_summary": "what happened, in one or two '
    'sentences", "episode_skill": "the advice"}. The advice is read by an agent just before it acts in '
    "the same shop on the same instruction: speak to the agent, be short and concrete, write actions as "
    "search[...] and click[...] with the exact names, and do not retell the episode."
)
COMMANDS_HEAD = "\nPossible now: "
ANALYZER_INSTRUCTIONS = {
    "success": "Below is a visit to a shop in which an agent bought exactly what it was asked for. Say which "
    "search found the product, how to recognise it, and which options to choose before buying; leave out "
    "detours. " + _ADVICE,
    "failure": "Below is a visit to a shop in which an agent did not buy exactly what it was asked for. Find "
    "the first thing that went wrong: keywords that found the wrong products, a product without an attribute "
    "that is asked for or above the price, options that were not chosen or chosen wrongly, turns lost on "
    "actions that were not possible, nothing bought in the end. Say how to do better. " + _ADVICE,
}


def system_prompt(format: Format) -> str:
    """Role, actions, and how to answer."""
    return f"{_ROLE}\n{_ACTIONS}\n{how_to_answer('action', format)}"


def with_commands(page: str, commands: Sequence[str]) -> str:
    """A page followed by what is possible on it; any keywords can be searched for."""
    listed = ("search[KEYWORDS]" if command.startswith("search[") else command for command in commands)
    return f"{page}{COMMANDS_HEAD}{', '.join(listed)}."
