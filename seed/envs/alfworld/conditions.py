"""First-order conditions, compiled once to closures: is it true, and which assignments make it true.

A condition becomes alternatives (where a disjunction has to bind variables), each a join of its positive
atoms in the order that visits the fewest rows, with every other part as a test as soon as its variables have
values. Tables are closed worlds: what is not there is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sprout.seed.envs.alfworld.facts import Tables
from sprout.seed.envs.alfworld.pddl import Domain, Expression, Row, Typed, atoms_of, typed_variables

Values = list[str]  # by slot; a slot is one variable
Test = Callable[[Values, Tables], bool]
Step = Callable[[Values, Tables], Iterator[Values]]


@dataclass(frozen=True)
class World:
    """What conditions are compiled against; `tables` only serve to guess how many rows an atom has."""

    domain: Domain
    types: Mapping[str, str]
    tables: Tables

    def objects(self, kind: str) -> tuple[str, ...]:
        """All objects of a type and of those below it."""
        return tuple(name for name, own in self.types.items() if self.domain.is_a(own, kind))


@dataclass
class _Scope:
    """Variables in sight: their slots and types."""

    slots: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    size: int = 0

    def extended(self, variables: Iterable[Typed]) -> _Scope:
        scope = _Scope(dict(self.slots), dict(self.types), self.size)
        for name, kind in variables:
            scope.slots[name], scope.types[name] = scope.size, kind
            scope.size += 1
        return scope


@dataclass(frozen=True)
class Join:
    """One alternative: assignments of `variables` that make all of it true."""

    slots: int
    step: Step
    atoms: tuple[tuple[str, ...], ...]

    def assignments(self, tables: Tables) -> Iterator[Values]:
        """Yields one list of values, changed in place between assignments."""
        return self.step([""] * self.slots, tables)


def compile_joins(variables: Sequence[Typed], condition: Expression, world: World) -> list[Join]:
    """Joins whose first slots are `variables`, in that order."""
    joins = []
    for inner, parts in _alternatives([condition], {name for name, _ in variables}):
        scope = _Scope().extended((*variables, *inner))
        if all(world.objects(kind) for kind in scope.types.values()):  # else nothing can satisfy it
            joins.append(_join(scope, set(), parts, world))
    return joins


def compile_test(
    condition: Expression, world: World, variables: Sequence[Typed] = ()
) -> Callable[[Sequence[str], Tables], bool]:
    """Whether a condition over `variables` holds for their values."""
    test = _test(condition, _Scope().extended(variables), world)
    return lambda values, tables: test(list(values), tables)


def predicates_of(condition: Expression) -> frozenset[str]:
    """The predicates that a condition reads."""
    return frozenset(atom[0] for atom in atoms_of(condition))


def _alternatives(
    parts: Sequence[Expression], taken: set[str]
) -> Iterator[tuple[list[Typed], list[Expression]]]:
    """Splits a conjunction into conjunctions without a disjunction that would have to bind a variable.

    Each comes with the variables of the quantifiers that were opened; no name in `taken` is used again.
    """
    variables, flat = _flatten(parts, taken)
    bound = {word for atom in flat if _is_atom(atom) for word in atom[1:] if isinstance(word, str)}
    for number, part in enumerate(flat):
        if part[0] == "or" and not _free(part) <= bound:
            rest = [*flat[:number], *flat[number + 1 :]]
            for branch in part[1:]:
                for inner, conjunction in _alternatives([*rest, branch], taken | {n for n, _ in variables}):
                    yield [*variables, *inner], conjunction
            return
    yield variables, flat


def _flatten(parts: Iterable[Expression], taken: set[str]) -> tuple[list[Typed], list[Expression]]:
    """Opens nested `and` and `exists`; a quantified variable whose name is taken gets another."""
    variables: list[Typed] = []
    flat: list[Expression] = []
    for part in parts:
        match part:
            case []:
                continue
            case ["and", *inner]:
                more, opened = _flatten(inner, taken | {name for name, _ in variables})
            case ["exists", names, inner]:
                used = taken | {name for name, _ in variables}
                fresh = {name: _unused(name, used) for name, _ in typed_variables(names)}
                more = [(fresh[name], kind) for name, kind in typed_variables(names)]
                deeper, opened = _flatten([_renamed(inner, fresh)], used | set(fresh.values()))
                more += deeper
            case _:
                more, opened = [], [part]
        variables += more
        flat += opened
    return variables, flat


def _unused(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name


def _renamed(part: Expression, names: Mapping[str, str]) -> Expression:
    """`part` with its free variables renamed."""
    match part:
        case str():
            return names.get(part, part)
        case ["exists" | "forall" as quantifier, inner, body]:
            hidden = {name for name, _ in typed_variables(inner)}
            return [quantifier, inner, _renamed(body, {k: v for k, v in names.items() if k not in hidden})]
    return [_renamed(one, names) for one in part]


def _is_atom(part: Expression) -> bool:
    return part[0] not in ("and", "or", "not", "imply", "exists", "forall", "=")


def _free(part: Expression) -> set[str]:
    """Variables of a part that are not quantified within it."""
    match part:
        case ["exists" | "forall", names, inner]:
            return _free(inner) - {name for name, _ in typed_variables(names)}
        case ["and" | "or" | "not" | "imply", *parts]:
            return set().union(*map(_free, parts))
        case [_, *arguments]:
            return {word for word in arguments if isinstance(word, str) and word.startswith("?")}
    return set()


def _join(scope: _Scope, bound: set[str], parts: Sequence[Expression], world: World) -> Join:
    bound = set(bound)
    new = [name for name in scope.slots if name not in bound]
    atoms = [part for part in parts if _is_atom(part)]
    tests = [part for part in parts if not _is_atom(part)]
    steps: list[Callable[[Step], Step]] = []

    def settle() -> None:
        """Run every test whose variables now have values."""
        for part in [part for part in tests if _free(part) <= bound]:
            tests.remove(part)
            steps.append(_filter(_test(part, scope, world)))

    settle()
    remaining = list(atoms)
    while remaining:
        atom = min(remaining, key=lambda atom: _expected_rows(atom, bound, world.tables))
        remaining.remove(atom)
        steps.append(_match(atom, bound, scope, world))
        bound |= _free(atom)
        settle()
    for name in new:
        if name not in bound:
            steps.append(_enumerate(scope.slots[name], world.objects(scope.types[name])))
            bound.add(name)
            settle()
    step: Step = _yield
    for make in reversed(steps):
        step = make(step)
    return Join(scope.size, step, tuple(tuple(map(str, atom)) for atom in atoms))


def _expected_rows(atom: Expression, bound: set[str], tables: Tables) -> float:
    table = tables[str(atom[0])]
    rows = float(len(table.rows))
    for index, word in zip(table.by_argument, atom[1:], strict=False):
        if word in bound or not str(word).startswith("?"):
            rows /= max(len(index), 1)
    return rows


def _yield(values: Values, tables: Tables) -> Iterator[Values]:
    yield values


def _filter(test: Test) -> Callable[[Step], Step]:
    def make(following: Step) -> Step:
        def step(values: Values, tables: Tables) -> Iterator[Values]:
            if test(values, tables):
                yield from following(values, tables)

        return step

    return make


def _enumerate(slot: int, objects: tuple[str, ...]) -> Callable[[Step], Step]:
    def make(following: Step) -> Step:
        def step(values: Values, tables: Tables) -> Iterator[Values]:
            for values[slot] in objects:
                yield from following(values, tables)

        return step

    return make


def _match(atom: Expression, bound: set[str], scope: _Scope, world: World) -> Callable[[Step], Step]:
    """Goes through the rows of an atom that agree with what is bound, and binds the rest."""
    predicate, words = str(atom[0]), [str(word) for word in atom[1:]]
    known = [(i, word) for i, word in enumerate(words) if word in bound or not word.startswith("?")]
    if len(known) == len(words):
        return _filter(_test(atom, scope, world))
    first = {word: i for i, word in reversed(list(enumerate(words)))}
    binds = [
        (first[word], _slot_of(word, scope)) for word in first if word.startswith("?") and word not in bound
    ]
    repeats = [(i, first[word]) for i, word in enumerate(words) if first[word] != i]
    admitted = [
        (position, frozenset(world.objects(scope.types[words[position]])))
        for position, _ in binds
        if not _declared_suffices(world.domain, predicate, position, scope.types[words[position]])
    ]
    keys = [(i, _value_of(word, scope)) for i, word in known]
    is_checked = len(keys) > 1 or bool(repeats) or bool(admitted)

    def make(following: Step) -> Step:
        def step(values: Values, tables: Tables) -> Iterator[Values]:
            table = tables[predicate]
            wanted = [(i, value(values)) for i, value in keys]
            rows = table.matching(*wanted[0]) if wanted else table.rows
            for row in tuple(rows):
                if is_checked and not (
                    all(row[i] == value for i, value in wanted[1:])
                    and all(row[i] == row[j] for i, j in repeats)
                    and all(row[i] in objects for i, objects in admitted)
                ):
                    continue
                for i, slot in binds:
                    values[slot] = row[i]
                yield from following(values, tables)

        return step

    return make


def _declared_suffices(domain: Domain, predicate: str, position: int, kind: str) -> bool:
    declared = domain.predicates.get(predicate, ())
    return position < len(declared) and domain.is_a(declared[position], kind)


def _value_of(word: str, scope: _Scope) -> Callable[[Values], str]:
    if not word.startswith("?"):
        return lambda values: word
    slot = _slot_of(word, scope)
    return lambda values: values[slot]


def _slot_of(variable: str, scope: _Scope) -> int:
    if variable not in scope.slots:
        raise ValueError(f"the variable {variable} is neither a parameter nor quantified")
    return scope.slots[variable]


def _test(part: Expression, scope: _Scope, world: World) -> Test:
    match part:
        case []:
            return lambda values, tables: True
        case ["and", *inner]:
            tests = [_test(one, scope, world) for one in inner]
            return lambda values, tables: all(test(values, tables) for test in tests)
        case ["or", *inner]:
            tests = [_test(one, scope, world) for one in inner]
            return lambda values, tables: any(test(values, tables) for test in tests)
        case ["not", inner]:
            test = _test(inner, scope, world)
            return lambda values, tables: not test(values, tables)
        case ["imply", given, inner]:
            return _test(["or", ["not", given], inner], scope, world)
        case ["forall", names, inner]:
            return _test(["not", ["exists", names, ["not", inner]]], scope, world)
        case ["exists", names, inner]:
            return _exists(typed_variables(names), inner, scope, world)
        case ["=", left, right]:
            one, other = _value_of(str(left), scope), _value_of(str(right), scope)
            return lambda values, tables: one(values) == other(values)
    return _holds(part, scope)


def _holds(atom: Expression, scope: _Scope) -> Test:
    predicate = str(atom[0])
    arguments = [_value_of(str(word), scope) for word in atom[1:]]
    if len(arguments) == 1:
        [only] = arguments
        return lambda values, tables: (only(values),) in tables[predicate].rows
    return lambda values, tables: tuple([value(values) for value in arguments]) in tables[predicate].rows


def _exists(variables: Sequence[Typed], inner: Expression, scope: _Scope, world: World) -> Test:
    joins = []
    for more, parts in _alternatives([inner], {*scope.slots, *(name for name, _ in variables)}):
        extended = scope.extended((*variables, *more))
        joins.append(_join(extended, set(scope.slots), parts, world))
    return lambda values, tables: any(
        True for join in joins for _ in join.step([*values, *[""] * (join.slots - len(values))], tables)
    )


def row_of(atom: Sequence[str], parameters: Sequence[str]) -> Callable[[Sequence[str]], Row]:
    """Grounds an atom over parameters, given their values."""
    places = []
    for word in atom[1:]:
        if word.startswith("?") and word not in parameters:
            raise ValueError(f"the effect {' '.join(atom)} has the unknown variable {word}")
        places.append(parameters.index(word) if word.startswith("?") else word)
    return lambda values: tuple([values[p] if isinstance(p, int) else p for p in places])
