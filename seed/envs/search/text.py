"""What the policy and the analyzer are told."""

from __future__ import annotations

from collections.abc import Sequence

from sprout.seed.envs.search.passages import Passage

_FORMAT = "exactly one <search>query</search> or exactly one <answer>answer</answer>"
SYSTEM_PROMPT = (
    "You answer a question with the help of a search engine. Whenever you have learned something, reason "
    "about it first, inside <think> and </think>. If knowledge is missing, write a query: "
    "<search>query</search>; the best passages then come back inside <information> and </information>. You "
    "can search several times. As soon as you know enough, give the answer alone, in as few words as "
    "possible: <answer>Beijing</answer>. Every turn ends with " + _FORMAT + "."
)
INVALID = f"That was no valid action: a turn ends with {_FORMAT}."
NOTHING_FOUND = "No passage was found."
RIGHT, WRONG = "The answer is right.", "The answer is wrong."
_ADVICE = (
    'Answer with one JSON object and nothing else: {"episode_summary": "what happened, in one or two '
    'sentences", "episode_skill": "the advice"}. The advice is read by an agent just before it works on the '
    "same question: speak to the agent, be short and concrete, quote the queries and the titles of passages "
    "that matter, and do not retell the episode."
)
ANALYZER_INSTRUCTIONS = {
    "success": "Below is an episode in which an agent answered a question with a search engine, rightly. Say "
    "which queries, in which order, brought the passages that settle the question, which fact in them it "
    "was, and which searches can be left out. " + _ADVICE,
    "failure": "Below is an episode in which an agent failed to answer a question with a search engine. Find "
    "the first thing that went wrong: a query that missed the point, a passage that was misread or not "
    "used, a step of the question skipped, an answer too long or never given. Say which searches need not "
    "be repeated, what to search for instead, and how to answer. " + _ADVICE,
}


def information(passages: Sequence[Passage]) -> str:
    """Retrieved passages as the policy reads them, best first."""
    found = (
        f'Doc {number}(Title: "{passage.title}") {passage.text}'
        for number, passage in enumerate(passages, start=1)
    )
    return f"<information>{chr(10).join(found) or NOTHING_FOUND}</information>"


def turns_left(count: int) -> str:
    """How often the policy may still act; nothing once it may not."""
    if count <= 0:
        return ""
    return f"You have {count} turns left." if count > 1 else "This is your last turn: give your answer."
