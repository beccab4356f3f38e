"""What kind of text a token is: where in a response skills speak up."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from sprout.engine.chat import ChatFormat

KINDS = ("word", "number", "punctuation", "space", "stop")


class TokenTexts:
    """Text and kind of token ids, looked up once each."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._text: dict[int, str] = {}

    def text(self, token: int) -> str:
        """What the token alone reads as."""
        if token not in self._text:
            self._text[token] = self._chat.text.decode([token])
        return self._text[token]

    def kinds(self, ids: Sequence[int]) -> np.ndarray:
        """[len(ids)] indices into KINDS."""
        return np.array([KINDS.index(self._kind(token)) for token in ids], np.int64)

    def _kind(self, token: int) -> str:
        if token == self._chat.stop_id:
            return "stop"
        text = self.text(token).strip()
        if not text:
            return "space"
        if any(letter.isalpha() for letter in text):
            return "word"
        return "number" if text.strip(string.punctuation).isnumeric() else "punctuation"
