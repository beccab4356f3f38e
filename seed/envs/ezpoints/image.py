"""Two cards and a formula as an image of 300 x 300 pixels, drawn from bitmaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sprout.seed.envs.ezpoints.cards import Card, Hand

SIZE = 300
_CARD_HEIGHT, _CARD_WIDTH, _CARD_TOP = 180, 128, 20
_CARD_LEFT = (15, 157)
_LINE_TOP, _LINE_LEFT = 235, 12
_TABLE, _PAPER, _WHITE = (50, 100, 75), (250, 250, 245), (255, 255, 255)
_INK = {"hearts": (200, 30, 40), "diamonds": (200, 30, 40), "spades": (20, 20, 25), "clubs": (20, 20, 25)}

# Rows from the top, a bit per pixel.
_GLYPHS = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11110 00001 00001 01110 00001 00001 11110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "J": "00111 00010 00010 00010 00010 10010 01100",
    "Q": "01110 10001 10001 10001 10101 10010 01101",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "+": "00000 00100 00100 11111 00100 00100 00000",
    "*": "00000 10101 01110 11111 01110 10101 00000",
    "=": "00000 00000 11111 00000 11111 00000 00000",
    "hearts": "0110110 1111111 1111111 1111111 0111110 0011100 0001000",
    "diamonds": "0001000 0011100 0111110 1111111 0111110 0011100 0001000",
    "spades": "0001000 0011100 0111110 1111111 1111111 0101010 0011100",
    "clubs": "0011100 0011100 1101011 1111111 1101011 0001000 0011100",
}
_BITMAPS = {
    name: np.array([[bit == "1" for bit in row] for row in rows.split()]) for name, rows in _GLYPHS.items()
}


def paint(hand: Hand, formula: Sequence[str]) -> np.ndarray:
    """uint8 [300, 300, 3]. A formula that is too long for its line is shown by its end."""
    image = np.full((SIZE, SIZE, 3), _TABLE, np.uint8)
    for card, left in zip(hand, _CARD_LEFT, strict=True):
        _paint_card(image[_CARD_TOP : _CARD_TOP + _CARD_HEIGHT, left : left + _CARD_WIDTH], card)
    line = _word([*" ".join(formula)], 4)
    room = SIZE - 2 * _LINE_LEFT
    _stamp(image, line[:, -room:] if line.size else line, _LINE_TOP, _LINE_LEFT, _WHITE)
    return image


def _paint_card(card_image: np.ndarray, card: Card) -> None:
    card_image[:] = _PAPER
    ink = _INK[card.suit]
    rank = _word([*card.rank], 7)
    _stamp(card_image, rank, 18, (_CARD_WIDTH - rank.shape[1]) // 2, ink)
    suit = _scaled(card.suit, 11)
    _stamp(card_image, suit, 84, (_CARD_WIDTH - suit.shape[1]) // 2, ink)


def _word(letters: Sequence[str], scale: int) -> np.ndarray:
    """Letters side by side, each followed by a gap of one bitmap pixel; a blank is a gap of two."""
    gap = np.zeros((7 * scale, scale), bool)
    parts = [
        part
        for letter in letters
        for part in (([_scaled(letter, scale)] if letter != " " else [gap]) + [gap])
    ]
    return np.concatenate(parts, axis=1) if parts else gap[:, :0]


def _scaled(name: str, scale: int) -> np.ndarray:
    return _BITMAPS[name].repeat(scale, axis=0).repeat(scale, axis=1)


def _stamp(image: np.ndarray, mask: np.ndarray, top: int, left: int, color: tuple[int, int, int]) -> None:
    height, width = mask.shape
    image[top : top + height, left : left + width][mask] = color
