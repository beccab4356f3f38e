"""What the policy and the analyzer are told beside the game's own words."""

from __future__ import annotations

from sprout.seed.envs.response import Format, how_to_answer

_ROLE = (
    "You act in a house that is described to you in words. Every turn you read what happened and answer with "
    "one command, until the task is done."
)
_COMMANDS = (
    "Commands: go to PLACE, open PLACE, close PLACE, take OBJECT from PLACE, move OBJECT to PLACE, use LAMP, "
    "heat OBJECT with PLACE, cool OBJECT with PLACE, clean OBJECT with PLACE, slice OBJECT with TOOL, "
    "examine THING, look, inventory. Things are named with their number, like drawer 2. You carry one object "
    "at a time. A command that is not possible now changes nothing."
)
_ADVICE = (
    'Answer with one JSON object and nothing else: {"episode_summary": "what happened, in one or two '
    'sentences", "episode_skill": "the advice"}. The advice is read by an agent just before it acts in '
    "the same house on the same task: speak to the agent, be short and concrete, use the exact names of "
    "objects and places, and do not retell the episode."
)
ANALYZER_INSTRUCTIONS = {
    "success": "Below is an episode in which a household agent did its task. Say where it found what it "
    "needed and which commands, in which order, the task takes; leave out detours. " + _ADVICE,
    "failure": "Below is an episode in which a household agent did not do its task. Find the first thing "
    "that went wrong: places searched twice or left out, closed places not opened, a step of the task "
    "skipped, commands that were not possible. Say where the needed objects were seen, or which places "
    "need not be searched again, and how to do better. " + _ADVICE,
}


def system_prompt(format: Format) -> str:
    """Role, commands, and how to answer."""
    return f"{_ROLE}\n{_COMMANDS}\n{how_to_answer('command', format)}"


def with_commands(observation: str, commands: tuple[str, ...]) -> str:
    """An observation followed by what is possible now; `help` is left out, it tells nothing new."""
    listed = ", ".join(command for command in commands if command != "help")
    return f"{observation}\nPossible now: {listed}."
