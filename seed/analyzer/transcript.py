"""A completed trajectory as text: what analyzers read, in full and never cut."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TranscriptStep:
    """One turn: what was seen, the full response to it, and whether that was a valid action."""

    observation: str
    response: str
    valid: bool = True


@dataclass(frozen=True)
class TrajectoryView:
    """What an analyzer may know of a trajectory; `final_observation` follows the last action."""

    # `final_observation` is None where the analyzer is not to see it.
    task: str
    steps: tuple[TranscriptStep, ...]
    success: bool
    final_observation: str | None = None

    def render(self) -> str:
        """The transcript of this trajectory."""
        outcome = "success" if self.success else "failure"
        return render_transcript(self.task, self.steps, outcome, self.final_observation)


def render_transcript(
    task: str, steps: Sequence[TranscriptStep], outcome: str, final_observation: str | None = None
) -> str:
    """Task, every step's observation, response and validity, and the outcome, one item a line.

    Words of the frame are separated by single blanks, so that word-level tokenizers read it too.
    """
    lines = [f"task : {task}"]
    for number, step in enumerate(steps, start=1):
        lines.append(f"step {number} : {step.observation}")
        lines.append(f"> {step.response}" + ("" if step.valid else " ! invalid"))
    if final_observation is not None:
        lines.append(f"end : {final_observation}")
    lines.append(f"outcome : {outcome}")
    return "\n".join(lines)
