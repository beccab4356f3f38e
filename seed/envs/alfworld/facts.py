"""Sets of facts, one table per predicate, indexed by every argument."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sprout.seed.envs.alfworld.pddl import Row

_NOTHING: frozenset[Row] = frozenset()


class Table:
    """The rows of one predicate that hold. `version` changes whenever they do."""

    __slots__ = ("by_argument", "rows", "version")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: set[Row] = set(rows)
        self.by_argument: list[dict[str, set[Row]]] = []
        self.version = 0
        for row in self.rows:
            self._index(row)

    def add(self, row: Row) -> None:
        if row not in self.rows:
            self.version += 1
            self.rows.add(row)
            self._index(row)

    def discard(self, row: Row) -> None:
        if row in self.rows:
            self.version += 1
            self.rows.remove(row)
            for index, value in zip(self.by_argument, row, strict=False):
                index[value].remove(row)

    def _index(self, row: Row) -> None:
        while len(self.by_argument) < len(row):
            self.by_argument.append({})
        for index, value in zip(self.by_argument, row, strict=False):
            found = index.get(value)
            if found is None:
                index[value] = {row}
            else:
                found.add(row)

    def matching(self, position: int, value: str) -> Collection[Row]:
        """The rows whose argument number `position` is `value`."""
        if position >= len(self.by_argument):
            return _NOTHING
        return self.by_argument[position].get(value, _NOTHING)


class Tables(dict[str, Table]):
    """Tables by predicate; a predicate without facts has an empty one."""

    def __missing__(self, predicate: str) -> Table:
        table = self[predicate] = Table()
        return table


def tables_of(facts: Iterable[tuple[str, Row]]) -> Tables:
    """Tables that hold `facts`."""
    rows: dict[str, list[Row]] = {}
    for predicate, row in facts:
        rows.setdefault(predicate, []).append(row)
    return Tables({predicate: Table(found) for predicate, found in rows.items()})


def with_own(tables: Mapping[str, Table], predicates: Iterable[str]) -> Tables:
    """The same facts with tables of their own for `predicates`; the others are shared and must not change."""
    own = Tables(tables)
    own.update({name: Table(tables[name].rows if name in tables else ()) for name in predicates})
    return own
