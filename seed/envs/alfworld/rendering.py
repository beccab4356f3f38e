"""Texts of a grammar in a state: finds what a query names and writes it down.

Queries are answered as the original engine does it: atoms from left to right, rows in the order of their ids,
and never the same thing for two placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sprout.seed.envs.alfworld.facts import Tables
from sprout.seed.envs.alfworld.grammar import (
    Each,
    Grammar,
    Placeholder,
    Query,
    Reference,
    Symbol,
    Symbols,
    Thing,
    Value,
)
from sprout.seed.envs.alfworld.pddl import Domain

Mapped = dict[Placeholder, str]


@dataclass(frozen=True)
class Writer:
    """Writes texts about the things of one game."""

    grammar: Grammar
    domain: Domain
    things: Mapping[str, Thing]

    def write(self, symbols: Symbols, mapped: Mapped, tables: Tables) -> str:
        """The text of `symbols` where placeholders stand for the things in `mapped`. Raises ValueError."""
        try:
            return "".join([self._symbol(symbol, mapped, tables) for symbol in symbols])
        except KeyError as error:
            raise ValueError(f"the grammar names {error}, which is not there") from None

    def _symbol(self, symbol: Symbol, mapped: Mapped, tables: Tables) -> str:
        match symbol:
            case str():
                return symbol
            case Value():
                return symbol.evaluate({name: self.things[found] for (name, _), found in mapped.items()})
            case Reference():
                return self._rule(symbol.rule, mapped, tables)
        return self._each(symbol, mapped, tables)

    def _rule(self, name: str, mapped: Mapped, tables: Tables) -> str:
        for production in self.grammar.rules[name]:
            condition = production.condition
            if condition is None or next(self.assignments(condition, mapped, tables), None) is not None:
                return "".join([self._symbol(symbol, mapped, tables) for symbol in production.symbols])
        raise ValueError(f"no text of the grammar rule {name!r} applies")

    def _each(self, each: Each, mapped: Mapped, tables: Tables) -> str:
        found = [mapped] if each.query is None else self.assignments(each.query, mapped, tables)
        texts = [self._symbol(each.inner, inner, tables) for inner in found]
        if not each.is_list:
            return "".join(texts)
        if not texts:
            return self._rule("list_empty", mapped, tables)
        if len(texts) == 1:
            return texts[0]
        separator = self._rule("list_separator", mapped, tables)
        return separator.join(texts[:-1]) + self._rule("list_last_separator", mapped, tables) + texts[-1]

    def assignments(self, query: Query, mapped: Mapped, tables: Tables) -> Iterator[Mapped]:
        """`mapped`, extended in every way that makes the query true."""
        return self._extend(query, 0, mapped, tables)

    def _extend(self, query: Query, depth: int, mapped: Mapped, tables: Tables) -> Iterator[Mapped]:
        if depth == len(query.atoms):
            yield mapped
            return
        predicate, placeholders = query.atoms[depth]
        table = tables[predicate]
        rows = table.rows
        for position, placeholder in enumerate(placeholders):
            if placeholder in mapped:
                rows = table.matching(position, mapped[placeholder])
                break
        for row in sorted(rows):
            extended = self._agree(placeholders, row, mapped)
            if extended is not None:
                yield from self._extend(query, depth + 1, extended, tables)

    def _agree(
        self, placeholders: tuple[Placeholder, ...], row: tuple[str, ...], mapped: Mapped
    ) -> Mapped | None:
        """`mapped` with the row's things, or None if they contradict it or have other types."""
        if len(row) != len(placeholders):
            return None
        extended = dict(mapped)
        for placeholder, name in zip(placeholders, row, strict=True):
            known = extended.get(placeholder)
            if not self.domain.is_a(self.things[name].type, placeholder[1]) or known not in (None, name):
                return None
            if known is None:
                if name in extended.values():
                    return None
                extended[placeholder] = name
        return extended
