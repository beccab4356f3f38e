"""Levels from (split, seed): a room with walls around it, and a start that can be solved in time."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product
from random import Random

from sprout.seed.envs.sokoban.room import MOST_BOXES, SIZE, STEPS, STILL, SYMBOLS, Cell, Position, Room, read

SHARES = {"train": 0.7, "select": 0.15, "report": 0.15}
_INNER: list[Cell] = list(product(range(1, SIZE - 1), repeat=2))
_WALLS = (2, 6)
_FEWEST_MOVES = 3


@dataclass(frozen=True)
class Level:
    """A room, where it starts, and `Room.distances` of it."""

    room: Room
    start: Position
    distances: dict[Position, int] = field(repr=False)

    def best_move(self, position: Position) -> str | None:
        """The first move of a shortest solution; None if there is none."""
        if self.room.is_solved(position) or position not in self.distances:
            return None
        found = {move: self.room.after(position, move) for move in STEPS}
        known = {move: self.distances[p] for move, p in found.items() if p in self.distances}
        return min(known, key=known.__getitem__)

    def solution(self) -> list[str]:
        """The moves of a shortest solution from the start; empty if there is none."""
        moves, position = [], self.start
        while move := self.best_move(position):
            moves.append(move)
            position = self._moved(position, move)
        return moves

    def solves(self, moves: list[str]) -> bool:
        """Whether these moves from the start are all possible and put every box on a target."""
        position: Position | None = self.start
        for move in moves:
            if position is None or self.room.is_solved(position):
                break
            position = self.room.after(position, move)
        return position is not None and self.room.is_solved(position)

    def _moved(self, position: Position, move: str) -> Position:
        following = self.room.after(position, move)
        assert following is not None, "a move of the solution is possible"
        return following


def generate_level(split: str, seed: int, boxes: int, most_moves: int) -> Level:
    """The level of (split, seed), whose shortest solution has at most `most_moves` moves.

    Rooms are drawn until one falls into the split. Lengths of the solution from 3 moves on are equally
    likely, as far as the room has them. Raises ValueError for an unknown split.
    """
    if split not in SHARES:
        raise ValueError(f"unknown split {split!r}; use one of {', '.join(SHARES)}")
    rng = Random(f"sokoban/{split}/{seed}/{boxes}")
    while True:
        room = _draw_room(rng, boxes)
        if room is None or split_of(room) != split:
            continue
        distances = room.distances()
        lengths = sorted(set(distances.values()))
        lengths = [n for n in lengths if min(_FEWEST_MOVES, most_moves) <= n <= most_moves]
        if lengths:
            length = rng.choice(lengths)
            starts = [position for position, moves in distances.items() if moves == length]
            return Level(room, rng.choice(starts), distances)


def level_of(drawing: str) -> Level:
    """The level that is drawn. Raises ValueError for text that is no room and for one without a solution."""
    found = read(drawing)
    if found is None:
        raise ValueError(
            f"a room has {SIZE} lines of {SIZE} symbols out of {' '.join(SYMBOLS)} with blanks between, one "
            f"player, and as many targets as boxes, 1 to {MOST_BOXES}"
        )
    room, start = found
    distances = room.distances()
    if not distances.get(start):
        raise ValueError("the room that is given is solved already or has no solution")
    return Level(room, start, distances)


def split_of(room: Room) -> str:
    """The split that a room (walls and targets) belongs to, whatever its start."""
    name = repr((sorted(room.floor), sorted(room.targets))).encode()
    place = int.from_bytes(blake2b(name, digest_size=8).digest(), "little") / 2**64
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    return "report"


def _draw_room(rng: Random, boxes: int) -> Room | None:
    """A room, or None if walls part its floor."""
    walls = rng.sample(_INNER, rng.randint(*_WALLS))
    floor = [cell for cell in _INNER if cell not in walls]
    room = Room(frozenset(floor), frozenset(rng.sample(floor, boxes)))
    return room if _is_connected(room, floor[0]) else None


def _is_connected(room: Room, start: Cell) -> bool:
    reached, waiting = {start}, [start]
    while waiting:
        here = Position(waiting.pop(), frozenset())
        for move in room.moves(here):
            following = room.after(here, move)
            if move != STILL and following is not None and following.player not in reached:
                reached.add(following.player)
                waiting.append(following.player)
    return reached == room.floor
