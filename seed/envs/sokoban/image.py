"""A Sokoban room as an image, of tiles of 16 x 16 pixels."""

from __future__ import annotations

import numpy as np

from sprout.seed.envs.sokoban.room import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    PLAYER,
    PLAYER_ON_TARGET,
    SIZE,
    TARGET,
    WALL,
    Position,
    Room,
    symbol,
)

TILE = 16
_Color = tuple[int, int, int]
_BRICK, _MORTAR, _GROUND = (150, 75, 50), (200, 190, 180), (245, 235, 215)
_RED, _GREEN, _SKIN, _BLUE = (215, 40, 40), (60, 150, 70), (240, 190, 150), (50, 80, 190)
_WOOD, _DARK = (190, 130, 60), (110, 70, 25)
_ROWS, _COLUMNS = np.mgrid[:TILE, :TILE]
_FROM_CENTRE = np.hypot(_ROWS - 7.5, _COLUMNS - 7.5)


def paint(room: Room, position: Position) -> np.ndarray:
    """uint8 [96, 96, 3]."""
    rows = [[_TILES[symbol(room, position, (row, column))] for column in range(SIZE)] for row in range(SIZE)]
    return np.concatenate([np.concatenate(row, axis=1) for row in rows], axis=0)


def _plain(color: _Color) -> np.ndarray:
    return np.full((TILE, TILE, 3), color, np.uint8)


def _wall() -> np.ndarray:
    tile = _plain(_BRICK)
    shifted = (_COLUMNS + 4 * (_ROWS // 4 % 2)) % 8 == 0
    tile[(_ROWS % 4 == 0) | shifted] = _MORTAR
    return tile


def _target(tile: np.ndarray) -> np.ndarray:
    """A red ring around the tile's middle: what stands on the target leaves its corners in sight."""
    tile = tile.copy()
    tile[(_FROM_CENTRE > 2.5) & (_FROM_CENTRE < 5) | (_FROM_CENTRE > 8.5)] = _RED
    return tile


def _box(frame: _Color) -> np.ndarray:
    tile = _plain(_GROUND)
    inside = np.maximum(abs(_ROWS - 7.5), abs(_COLUMNS - 7.5))
    tile[inside < 7] = _WOOD
    crossed = (abs(_ROWS - _COLUMNS) < 2) | (abs(_ROWS + _COLUMNS - 15) < 2)
    tile[(inside < 7) & (crossed | (inside > 5))] = frame
    return tile


def _player(tile: np.ndarray) -> np.ndarray:
    tile = tile.copy()
    tile[(_ROWS >= 8) & (_ROWS < 14) & (abs(_COLUMNS - 7.5) < 4)] = _BLUE
    tile[np.hypot(_ROWS - 4.5, _COLUMNS - 7.5) < 3.5] = _SKIN
    return tile


_TILES = {
    WALL: _wall(),
    FLOOR: _plain(_GROUND),
    TARGET: _target(_plain(_GROUND)),
    BOX: _box(_DARK),
    BOX_ON_TARGET: _box(_GREEN),
    PLAYER: _player(_plain(_GROUND)),
    PLAYER_ON_TARGET: _player(_target(_plain(_GROUND))),
}
