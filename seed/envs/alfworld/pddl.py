"""Reads PDDL text: domain and problem as plain data. Everything is lower case, as the planner reads it.

Supported is what the game files use: typed objects, actions with conditional effects, full first-order
conditions, `=`; numeric effects (costs) are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

ROOT_TYPE = "object"
Expression = str | list["Expression"]
Row = tuple[str, ...]
Typed = tuple[str, str]
_COMMENT = re.compile(r";[^\n]*")
_CONNECTIVES = {"and": None, "or": None, "not": 1, "imply": 2, "exists": 2, "forall": 2}


@dataclass(frozen=True)
class Effect:
    """`row` (an atom over parameters and constants) becomes true or false when `condition` holds, if any."""

    atom: tuple[str, ...]
    positive: bool
    condition: Expression | None = None


@dataclass(frozen=True)
class Schema:
    """An action: parameters as (variable, type), precondition, effects."""

    name: str
    parameters: tuple[Typed, ...]
    precondition: Expression
    effects: tuple[Effect, ...]


@dataclass(frozen=True)
class Domain:
    """`supertypes` holds a type and all above it; `predicates` the declared types of their arguments."""

    supertypes: dict[str, frozenset[str]]
    predicates: dict[str, tuple[str, ...]]
    schemas: dict[str, Schema]
    constants: tuple[Typed, ...]

    def is_a(self, kind: str, wanted: str) -> bool:
        """Whether every object of type `kind` is also of type `wanted`."""
        return wanted in self.supertypes.get(kind, ())


@dataclass(frozen=True)
class Problem:
    """`types` of all objects by name, the facts that hold at first, and the goal condition."""

    types: dict[str, str]
    facts: tuple[tuple[str, Row], ...]
    goal: Expression


@lru_cache(maxsize=8)
def parse_domain(text: str) -> Domain:
    """The domain of a text; the same text gives the same object. Raises ValueError."""
    sections = _sections(text, "domain")
    types = dict(_typed(sections.get(":types", [])))
    supertypes = {name: _ancestors(name, types) for name in (*types, ROOT_TYPE)}
    predicates = {
        _name(item[0]): tuple(kind for _, kind in _typed(item[1:]))
        for item in map(_list, sections.get(":predicates", []))
    }
    schemas = [_schema(body) for body in sections.every(":action")]
    for schema in schemas:
        _check_arity(
            schema.name, predicates, [*atoms_of(schema.precondition), *(e.atom for e in schema.effects)]
        )
        _check_arity(
            schema.name, predicates, (a for e in schema.effects for a in atoms_of(e.condition or []))
        )
    return Domain(
        supertypes, predicates, {s.name: s for s in schemas}, _typed(sections.get(":constants", []))
    )


def parse_problem(text: str, domain: Domain) -> Problem:
    """Objects, initial facts and goal. Raises ValueError."""
    sections = _sections(text, "problem")
    types = dict((*domain.constants, *_typed(sections.get(":objects", []))))
    facts = tuple(_facts(sections.get(":init", []), types))
    goal = sections.get(":goal", [])
    if len(goal) != 1:
        raise ValueError("the problem needs exactly one goal")
    check_condition(goal[0])
    _check_arity("the start", domain.predicates, {(name, *row) for name, row in facts})
    _check_arity("the goal", domain.predicates, atoms_of(goal[0]))
    return Problem(types, facts, goal[0])


def _facts(items: Iterable[Expression], types: Mapping[str, str]) -> Iterator[tuple[str, Row]]:
    for item in items:
        head, *arguments = _list(item) or [""]
        if head == "=":  # initial values of numbers concern costs only
            continue
        for name in arguments:
            if not isinstance(name, str) or name not in types:
                raise ValueError(f"the fact {_text(item)} names {_text(name)!r}, which is not an object")
        yield _name(head), tuple(arguments)  # type: ignore[arg-type]


def parse_expression(text: str) -> list[Expression]:
    """Nested lists of lower-case words. Raises ValueError for unbalanced parentheses."""
    words = _COMMENT.sub("", text).lower().replace("(", " ( ").replace(")", " ) ").replace("?", " ?").split()
    stack: list[list[Expression]] = [[]]
    for word in words:
        if word == "(":
            stack.append([])
        elif word == ")":
            if len(stack) == 1:
                raise ValueError("a ')' without '('")
            closed = stack.pop()
            stack[-1].append(closed)
        else:
            stack[-1].append(intern(word))
    if len(stack) > 1:
        raise ValueError("a '(' is never closed")
    return stack[0]


def typed_variables(items: Expression) -> tuple[Typed, ...]:
    """(name, type) of a list like `?a ?b - kind ?c`; without a type it is `object`."""
    return _typed(_list(items))


def check_condition(expression: Expression) -> None:
    """Raises ValueError for what is not a condition."""
    if expression == []:
        return
    head = _name(_list(expression)[:1] or "")
    parts = expression[1:]
    if head in _CONNECTIVES:
        if _CONNECTIVES[head] not in (None, len(parts)):
            raise ValueError(f"{_text(expression)} needs {_CONNECTIVES[head]} parts")
        if head in ("exists", "forall"):
            typed_variables(parts[0])
            parts = parts[1:]
        for part in parts:
            check_condition(part)
    else:
        for part in parts:
            _name(part)


def atoms_of(condition: Expression) -> Iterator[tuple[str, ...]]:
    """Every atom of a condition, whatever stands around it; equalities are none."""
    match condition:
        case ["and" | "or" | "not" | "imply", *parts]:
            for part in parts:
                yield from atoms_of(part)
        case ["exists" | "forall", _, inner]:
            yield from atoms_of(inner)
        case [str() as head, *_] if head != "=":
            yield tuple(map(_name, condition))


def _check_arity(
    place: str, predicates: Mapping[str, Sequence[str]], atoms: Iterable[tuple[str, ...]]
) -> None:
    for name, *arguments in atoms:
        if name not in predicates:
            raise ValueError(f"{place} uses {name!r}, which the domain does not declare")
        if len(arguments) != len(predicates[name]):
            raise ValueError(
                f"{place} uses {name!r} with {len(arguments)} things, not {len(predicates[name])}"
            )


class _Sections(dict[str, list[Expression]]):
    """The last body of every section, and all bodies of those that repeat."""

    def __init__(self, items: Iterable[Expression]) -> None:
        self._all = [(_name(_list(item)[:1]), _list(item)[1:]) for item in items]
        super().__init__(self._all)

    def every(self, name: str) -> Iterator[list[Expression]]:
        return (body for key, body in self._all if key == name)


def _sections(text: str, kind: str) -> _Sections:
    expressions = parse_expression(text)
    if len(expressions) != 1 or _list(expressions[0])[:1] != ["define"]:
        raise ValueError(f"the {kind} is not one (define ...) block")
    return _Sections(expressions[0][1:])


def _schema(body: Sequence[Expression]) -> Schema:
    name = _name(body[0])
    fields = dict(zip(map(_name, body[1::2]), body[2::2], strict=False))
    precondition = fields.get(":precondition", [])
    check_condition(precondition)
    effects = tuple(_effects(fields.get(":effect", []), None))
    return Schema(name, typed_variables(fields.get(":parameters", [])), precondition, effects)


def _effects(expression: Expression, condition: Expression | None) -> Iterator[Effect]:
    match expression:
        case []:
            return
        case ["and", *parts]:
            for part in parts:
                yield from _effects(part, condition)
        case ["when", inner, effect] if condition is None:
            check_condition(inner)
            yield from _effects(effect, inner)
        case ["increase", *_]:
            return
        case ["not", [str(), *_] as atom]:
            yield Effect(tuple(map(_name, atom)), False, condition)
        case [str() as head, *_] if head not in ("forall", "when", "not"):
            yield Effect(tuple(map(_name, expression)), True, condition)
        case _:
            raise ValueError(f"the effect {_text(expression)} is not supported")


def _typed(items: Sequence[Expression]) -> tuple[Typed, ...]:
    found: list[Typed] = []
    pending: list[str] = []
    words = iter(items)
    for word in words:
        if word == "-":
            kind = _name(next(words, ""))
            found += [(name, kind) for name in pending]
            pending = []
        else:
            pending.append(_name(word))
    return (*found, *((name, ROOT_TYPE) for name in pending))


def _ancestors(name: str, types: dict[str, str]) -> frozenset[str]:
    found = {name, ROOT_TYPE}
    while (name := types.get(name, ROOT_TYPE)) not in found:
        found.add(name)
    return frozenset(found)


def _list(expression: Expression) -> list[Expression]:
    if not isinstance(expression, list):
        raise ValueError(f"expected a list in parentheses, not {expression!r}")
    return expression


def _name(expression: Expression) -> str:
    if isinstance(expression, list) and len(expression) == 1:
        expression = expression[0]
    if not isinstance(expression, str) or not expression:
        raise ValueError(f"expected a name, not {_text(expression) or 'nothing'}")
    return expression


def _text(expression: Expression) -> str:
    if isinstance(expression, str):
        return expression
    return f"({' '.join(map(_text, expression))})"
