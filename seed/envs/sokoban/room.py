"""A Sokoban room: where one can stand, what a move does, and how far every position is from the solution."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

Cell = tuple[int, int]  # row, column

SIZE = 6
MOST_BOXES = 3
STEPS: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
STILL = "still"
WALL, FLOOR, TARGET, BOX, PLAYER, BOX_ON_TARGET, PLAYER_ON_TARGET = SYMBOLS = "#_OXP√S"


class Position(NamedTuple):
    """Where the player and the boxes are."""

    player: Cell
    boxes: frozenset[Cell]


@dataclass(frozen=True)
class Room:
    """Cells that are not wall, and as many targets as there are boxes."""

    floor: frozenset[Cell]
    targets: frozenset[Cell]

    def after(self, position: Position, move: str) -> Position | None:
        """The position after a move; None if a wall, or a box that cannot be pushed, is in the way."""
        if move == STILL:
            return position
        player, boxes = _add(position.player, STEPS[move]), position.boxes
        if player in boxes:
            pushed = _add(player, STEPS[move])
            if pushed in boxes or pushed not in self.floor:
                return None
            boxes = boxes - {player} | {pushed}
        return Position(player, boxes) if player in self.floor else None

    def moves(self, position: Position) -> list[str]:
        """What is possible: steps, pushes, and standing still."""
        return [move for move in (*STEPS, STILL) if self.after(position, move) is not None]

    def is_solved(self, position: Position) -> bool:
        """Whether every box is on a target."""
        return position.boxes == self.targets

    def distances(self) -> dict[Position, int]:
        """Fewest moves to the solution, of every position that has one: a breadth-first search backwards."""
        found = {Position(cell, self.targets): 0 for cell in sorted(self.floor - self.targets)}
        queue = deque(found)
        while queue:
            position = queue.popleft()
            for before in self._before(position):
                if before not in found:
                    found[before] = found[position] + 1
                    queue.append(before)
        return found

    def _before(self, position: Position) -> list[Position]:
        """Positions from which one move leads here: the player steps back, with or without pulling a box."""
        found = []
        for row, column in STEPS.values():
            player = _add(position.player, (-row, -column))
            if player not in self.floor or player in position.boxes:
                continue
            found.append(Position(player, position.boxes))
            pulled = _add(position.player, (row, column))
            if pulled in position.boxes:
                found.append(Position(player, position.boxes - {pulled} | {position.player}))
        return found


def draw(room: Room, position: Position) -> str:
    """The room as text: a line per row, cells separated by single blanks."""
    return "\n".join(
        " ".join(symbol(room, position, (row, column)) for column in range(SIZE)) for row in range(SIZE)
    )


def symbol(room: Room, position: Position, cell: Cell) -> str:
    """What is at a cell."""
    is_target = cell in room.targets
    if cell in position.boxes:
        return BOX_ON_TARGET if is_target else BOX
    if cell == position.player:
        return PLAYER_ON_TARGET if is_target else PLAYER
    if is_target:
        return TARGET
    return FLOOR if cell in room.floor else WALL


def read(text: str) -> tuple[Room, Position] | None:
    """What `draw` has drawn; None for any other text, and for more boxes than levels have."""
    rows = [line.split(" ") for line in text.split("\n")]
    if len(rows) != SIZE or any(len(row) != SIZE for row in rows):
        return None
    cells = {(r, c): rows[r][c] for r in range(SIZE) for c in range(SIZE)}
    at = {name: frozenset(cell for cell, found in cells.items() if found == name) for name in SYMBOLS}
    players = at[PLAYER] | at[PLAYER_ON_TARGET]
    boxes = at[BOX] | at[BOX_ON_TARGET]
    targets = at[TARGET] | at[BOX_ON_TARGET] | at[PLAYER_ON_TARGET]
    is_whole = sum(map(len, at.values())) == len(cells) and len(players) == 1
    if not is_whole or not 1 <= len(boxes) == len(targets) <= MOST_BOXES:
        return None
    return Room(frozenset(cells) - at[WALL], targets), Position(min(players), boxes)


def _add(cell: Cell, step: Cell) -> Cell:
    return cell[0] + step[0], cell[1] + step[1]
