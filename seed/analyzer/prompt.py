"""The analyzer's prompt and answer: one trajectory in, one JSON object out.

Success and failure have their own instructions. An environment may bring its own words for them (a class
attribute `analyzer_instructions: dict[outcome, str]`); the ones here are for language models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sprout.engine.chat import ChatFormat
from sprout.engine.forest import Turn
from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.conversation import action_ids
from sprout.seed.trajectory import Skill, Trajectory

SUMMARY, SKILL = "episode_summary", "episode_skill"

_FORMAT = (
    'Answer with one JSON object and nothing else: {"episode_summary": "what happened, in one or two '
    'sentences", "episode_skill": "the advice"}. The advice is read by an agent right before it acts on this '
    "task: address the agent, be short and concrete, name the objects, places and commands that matter, and "
    "do not retell the episode."
)
INSTRUCTIONS: dict[str, str] = {
    "success": "Below is an episode in which an agent solved its task. Work out which decisions were "
    "decisive and in which order, and make them a workflow that solves the task. " + _FORMAT,
    "failure": "Below is an episode in which an agent failed its task. Work out the core mistake, the signs "
    "that could have shown it, and a rule that avoids it or recovers from it. " + _FORMAT,
}


def instructions_of(environment: Any) -> Mapping[str, str]:
    """The environment's own instructions or the general ones. Raises ValueError if an outcome lacks one."""
    instructions = getattr(environment, "analyzer_instructions", INSTRUCTIONS)
    if set(instructions) != set(INSTRUCTIONS):
        raise ValueError(
            f"{environment}: analyzer_instructions needs the keys {', '.join(sorted(INSTRUCTIONS))}, "
            f"not {', '.join(sorted(instructions)) or 'none'}"
        )
    return instructions


def language_model_instructions(environment: Any) -> Mapping[str, str]:
    """The environment's own instructions where they say what an answer looks like, else the general ones.

    Words for a small model that is taught its answers leave that out; no other model could guess it.
    """
    own = instructions_of(environment)
    return own if all(SKILL in text for text in own.values()) else INSTRUCTIONS


def view_of(trajectory: Trajectory, terminal_observation: bool = True) -> TrajectoryView:
    """What an analyzer may see of a trajectory, in full."""
    steps = (TranscriptStep(turn.observation, turn.response, turn.admissible) for turn in trajectory.turns)
    final = trajectory.final_observation if terminal_observation else None
    return TrajectoryView(trajectory.task, tuple(steps), trajectory.success, final)


def prompt_ids(
    trajectory: Trajectory,
    chat: ChatFormat,
    instructions: Mapping[str, str],
    terminal_observation: bool = True,
) -> list[int]:
    """Instruction and transcript as ids, up to the assistant's opening; nothing is cut."""
    return view_prompt_ids(view_of(trajectory, terminal_observation), chat, instructions)


def view_prompt_ids(view: TrajectoryView, chat: ChatFormat, instructions: Mapping[str, str]) -> list[int]:
    """The same prompt for an episode that no policy played."""
    instruction, transcript = view_texts(view, instructions)
    if "system" in chat.pieces:
        messages = [("system", instruction), ("user", transcript)]
    else:
        messages = [("user", f"{instruction}\n{transcript}")]
    return [*chat.conversation(messages), *chat.opening("assistant")]


def prompt_texts(
    trajectory: Trajectory, instructions: Mapping[str, str], terminal_observation: bool = True
) -> tuple[str, str]:
    """(instruction for the outcome, transcript in full)."""
    return view_texts(view_of(trajectory, terminal_observation), instructions)


def view_texts(view: TrajectoryView, instructions: Mapping[str, str]) -> tuple[str, str]:
    """(instruction for the outcome, transcript in full) of an episode."""
    return instructions["success" if view.success else "failure"], view.render()


def skill_turn(
    trajectory: Trajectory,
    skill: Skill,
    chat: ChatFormat,
    instructions: Mapping[str, str],
    terminal_observation: bool = True,
) -> Turn:
    """A Stage-1 pair: the analyzer's prompt as context, the skill's JSON as the action that is trained."""
    context = prompt_ids(trajectory, chat, instructions, terminal_observation)
    action = action_ids(chat, format_answer(skill.summary, skill.text))
    return Turn(np.asarray(context, np.int64), np.asarray(action, np.int64))


def format_answer(summary: str, skill: str) -> str:
    """The JSON text that `parse_answer` reads."""
    return json.dumps({SUMMARY: summary, SKILL: skill}, ensure_ascii=False)


def parse_answer(text: str, repair: Callable[[str], Any] | None = None) -> tuple[str, str]:
    """(summary, skill) from an analyzer's answer.

    Text around the JSON object (a code fence, reasoning) and white space in keys and around values are
    tolerated; a missing key, a value that is not a string, and an empty skill raise ValueError. `repair` gets
    what begins like an object and does not parse, and gives the object that it meant.
    """
    text = text.rpartition("</think>")[2]
    for start in (place for place, letter in enumerate(text) if letter == "{"):
        try:
            found, _ = json.JSONDecoder(strict=False).raw_decode(text, start)
        except (ValueError, RecursionError):  # also an integer of thousands of digits, thousands of brackets
            continue
        return _checked({"".join(key.split()): value for key, value in found.items()})
    if repair is not None and "{" in text:
        try:
            found = repair(text[text.index("{") :])
        except RecursionError:
            found = None
        if isinstance(found, dict):
            return _checked({"".join(str(key).split()): value for key, value in found.items()})
    raise ValueError("no JSON object in the answer")


def _checked(found: Mapping[str, object]) -> tuple[str, str]:
    for key in (SUMMARY, SKILL):
        if not isinstance(found.get(key), str):
            raise ValueError(f"{key} is {'missing' if key not in found else 'not a string'}")
    summary, skill = str(found[SUMMARY]).strip(), str(found[SKILL]).strip()
    if not skill:
        raise ValueError(f"{SKILL} is empty")
    return summary, skill
