"""What a token reads as where it stands."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer


class Pieces:
    """Texts of token ids, such that the texts of a response joined are the response; ids without a tokenizer.

    A blank before a token belongs to it, special tokens are written out, and bytes that are no character by
    themselves read as U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._seen: dict[tuple[int, ...], str] = {}

    @property
    def known(self) -> bool:
        """Whether there is a tokenizer."""
        return self._tokenizer is not None

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """The text of each id."""
        if self._tokenizer is None:
            return [f"#{token} " for token in ids]
        return [self._piece(ids[i - 1 : i + 1] if i else ids[:1]) for i in range(len(ids))]

    def _piece(self, ids: Sequence[int]) -> str:
        """The text of the last of one or two ids."""
        key = tuple(ids)
        if key not in self._seen:
            before, both, alone = (self._decode(part) for part in (key[:-1], key, key[-1:]))
            self._seen[key] = both.removeprefix(before) if both.startswith(before) else alone
        return self._seen[key]

    def _decode(self, ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False) if ids else ""
        return text
