"""Results as a table on the terminal, in Markdown, and in a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from sprout.engine.terminal import PlainConsole

Row = Mapping[str, str | int | float]


def show(title: str, rows: Sequence[Row]) -> None:
    """Print rows that share their keys."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console = PlainConsole()
    console.width = max(console.width, 160)
    console.print(table)


def write_csv(file: Path, rows: Sequence[Row], constant: Row) -> None:
    """One line per row, with the same device and version columns on each."""
    assert not rows[0].keys() & constant.keys(), "a constant column would overwrite measurements"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, [*rows[0], *constant])
        writer.writeheader()
        writer.writerows(dict(row) | dict(constant) for row in rows)


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table of rows that share their keys."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(v) for v in row.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: str | int | float) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)
