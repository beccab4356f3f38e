"""Responses that end at a string, such as a closing tag, and not only at a stop id."""

from __future__ import annotations

from collections.abc import Sequence

from sprout.engine.chat import ChatFormat
from sprout.engine.sequences import Int64

UNFINISHED = "\ufffd"  # how a token that holds a part of a character reads on its own


class StopStrings:
    """Strings that end a response with the first token that completes one of them.

    A string may be spread over any tokens, and the last of them may say more than the string; ids are kept as
    sampled. `vocabulary` is the number of ids that the model can sample. Raises ValueError for an empty
    string.
    """

    def __init__(self, strings: Sequence[str], chat: ChatFormat, vocabulary: int) -> None:
        if not strings or not all(strings):
            raise ValueError("stop strings must not be empty")
        self.strings = tuple(strings)
        self._decode = chat.text.decode
        letters = {string[-1] for string in strings} | {UNFINISHED}
        pieces = chat.text.decode_each(range(vocabulary))
        self._may_complete = [not letters.isdisjoint(piece) for piece in pieces]

    def ends(self, response: Int64) -> bool:
        """Whether the last id of `response` completes a string."""
        if not self._may_complete[int(response[-1])]:
            return False
        text = self._decode(response.tolist())
        return any(string in text for string in self.strings)
