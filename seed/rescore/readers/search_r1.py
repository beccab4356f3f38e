"""Search-R1 transcripts: {"prompt", "response", "golden_answers", ...}.

The agent's one long response holds the retrieved text in <information> blocks. Here each block becomes the
next observation, a message of the other side, and what stands between two blocks becomes an action; white
space around blocks is dropped. Success is the exact match of the last <answer>, unless the record tells it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from sprout.seed.envs.search.exact_match import matches
from sprout.seed.rescore.dialogue import Dialogue, Step
from sprout.seed.rescore.readers import Line
from sprout.seed.rescore.readers.messages import outcome
from sprout.seed.trajectory import Trajectory

CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
BLOCK = re.compile(r"<information>.*?(?:</information>|\Z)", re.DOTALL)
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def recognises(record: Mapping[str, Any]) -> bool:
    """It has a prompt and a response, both texts."""
    return isinstance(record.get("prompt"), str) and isinstance(record.get("response"), str)


def read(record: Mapping[str, Any], line: Line) -> Trajectory:
    """The response cut into turns at its <information> blocks."""
    if not recognises(record):
        raise ValueError("prompt and response must be texts")
    said, response = CHATML.findall(record["prompt"]), record["response"]
    system = "\n\n".join(text.strip() for role, text in said if role == "system")
    question = "\n\n".join(text.strip() for role, text in said if role == "user") or record["prompt"]
    steps, seen = [], [question]
    for action, block in zip_longest(BLOCK.split(response), BLOCK.findall(response), fillvalue=""):
        if action.strip():
            steps.append(Step("\n\n".join(seen), action.strip(), stopped="</answer>" in action))
            seen = []
        seen += [block.strip()] if block else []
    if not steps:
        raise ValueError("the response holds no action")
    told = outcome(record)
    if told["success"] is None and told["reward"] is None and record.get("golden_answers"):
        golden = record["golden_answers"]
        if not isinstance(golden, list) or not all(isinstance(answer, str) for answer in golden):
            raise ValueError("golden_answers should be a list of texts")
        told["success"] = exact_match(response, golden)
    told["family"] = str(record.get("family", record.get("dataset", "all")))
    return Dialogue(
        id=str(record.get("id", line.number)),
        env="search-r1",
        steps=steps,
        system=system or line.system,
        final_observation="\n\n".join(seen),
        **told,
    ).trajectory(line.chat, line.layout)


def exact_match(response: str, golden: list[str]) -> bool:
    """Whether the last <answer> is a golden answer."""
    answers = ANSWER.findall(response)
    return bool(answers) and matches(answers[-1], golden)
