"""Exact match of answers, as in SQuAD (arXiv 1606.05250) and Search-R1."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(text: str) -> str:
    """Lower case without ASCII punctuation, articles and extra blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def matches(answer: str, golden_answers: Iterable[str]) -> bool:
    """Whether an answer equals any golden answer once both are normalized."""
    return normalized(answer) in {normalized(golden) for golden in golden_answers}


def mentions(text: str, golden_answers: Iterable[str]) -> bool:
    """Whether a golden answer stands in a text as whole words, once both are normalized."""
    words = f" {normalized(text)} "
    wanted = (normalized(golden) for golden in golden_answers)
    return any(bool(golden) and f" {golden} " in words for golden in wanted)
