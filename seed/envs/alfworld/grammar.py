"""Reads a game's grammar: what every action is called and what the player is told about it.

A text is a sequence of symbols: words; `{expression}`, the value of an expression over the action's things,
with `| query` once for everything that satisfies the query; `[{...}]`, the same as a list; `#rule#`, another
rule's text. A rule has several texts, each with a condition; the first whose condition can be met is taken.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class Thing:
    """An object as expressions see it."""

    id: str
    type: str
    name: str
    definite: str = "the"
    indefinite: str = "a"


Things = Mapping[str, Thing]
Placeholder = tuple[str, str]  # name and type of a query's variable


@dataclass(frozen=True)
class Query:
    """A conjunction of atoms over placeholders."""

    atoms: tuple[tuple[str, tuple[Placeholder, ...]], ...]

    @property
    def predicates(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.atoms)


@dataclass(frozen=True)
class Value:
    """`{expression}`: the text of an expression over the things called `names`."""

    evaluate: Callable[[Things], str]
    names: frozenset[str]


@dataclass(frozen=True)
class Reference:
    """`#rule#`: the text of a rule."""

    rule: str


@dataclass(frozen=True)
class Each:
    """`inner` for every assignment of `query`: one after the other, or as a list with separators."""

    inner: Value | Reference
    query: Query | None
    is_list: bool


Symbol = str | Value | Reference | Each
Symbols = tuple[Symbol, ...]


@dataclass(frozen=True)
class Production:
    condition: Query | None
    symbols: Symbols


@dataclass(frozen=True)
class ActionText:
    """The command of an action and the text that follows it."""

    command: Symbols
    feedback: Symbols


@dataclass(frozen=True)
class Grammar:
    rules: Mapping[str, tuple[Production, ...]]
    actions: Mapping[str, ActionText]


_PART = re.compile(
    r"\s+|#[^\n]*|(?P<end>\})|action\s+(?P<action>[\w/-]+)\s*\{"
    r'|(?P<key>template|feedback|pddl|grammar)\s*::\s*(?:"""(?P<block>.*?)"""|"(?P<text>[^"]*)")\s*;',
    re.DOTALL,
)
_ATOM = re.compile(r"\s*([\w/'-]+)\s*\(([^()]*)\)\s*")
_EACH = (
    r"\{(?:#(?P<rule>[\w()/!<>\-\s,.]+)#|(?P<value>[^|\[\]{}\n<>#]+))"
    r"(?:\s*\|\s*(?P<query>[^;|{}\n\[\]#]+))?\}"
)
_SYMBOL = re.compile(
    rf"\t*(?:\[(?P<list>{_EACH})\]|(?P<each>{re.sub('P<', 'P<one_', _EACH)})"
    r'|#(?P<reference>[\w()/!<>\-\s,.]+)#|"?(?P<words>[^;|"<>\[\]#{}]+)"?)'
)
_LEADING = re.compile(r"(?:\s|//[^\n]*)*")  # blank space and comments before a text are not part of it
_ATTRIBUTES = ("id", "type", "name", "definite", "indefinite")


def parse_grammar(text: str) -> Grammar:
    """The grammar of a text. Raises ValueError."""
    rules: dict[str, tuple[Production, ...]] = {}
    actions: dict[str, ActionText] = {}
    action, fields = "", {"template": "", "feedback": ""}
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            line = text.count("\n", 0, position) + 1
            raise ValueError(
                f"grammar line {line}: {text[position:].splitlines()[0][:60]!r} is not understood"
            )
        position = part.end()
        if part["action"]:
            action, fields = part["action"].lower(), {"template": "", "feedback": ""}
        elif part["end"]:
            actions[action] = ActionText(parse_symbols(fields["template"]), parse_symbols(fields["feedback"]))
        elif part["key"] == "grammar":
            rules |= _productions(part["block"] or part["text"])
        elif part["key"]:
            fields[part["key"]] = part["text"] or part["block"] or ""
    return Grammar(rules, actions)


def _productions(block: str) -> dict[str, tuple[Production, ...]]:
    lines = [line for line in block.split("\n") if not line.lstrip().startswith("#")]
    try:
        data = json.loads("\n".join(lines))
        return {name: tuple(map(_production, rules)) for name, rules in data.items()}
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"a grammar block is not as expected: {type(error).__name__} {error}") from None


def _production(rule: Mapping[str, Any]) -> Production:
    condition = rule.get("condition")
    return Production(parse_query(condition) if condition else None, parse_symbols(rule["rhs"]))


@lru_cache(maxsize=4096)
def parse_symbols(text: str) -> Symbols:
    """The symbols of a text; what follows the first thing that is no symbol is left out."""
    symbols: list[Symbol] = []
    position = _LEADING.match(text).end()  # type: ignore[union-attr]
    while found := _SYMBOL.match(text, position):
        position = found.end()
        if found["list"]:
            symbols.append(_each(found["rule"], found["value"], found["query"], is_list=True))
        elif found["each"]:
            each = _each(found["one_rule"], found["one_value"], found["one_query"], is_list=False)
            symbols.append(each if each.query else each.inner)
        elif found["reference"]:
            symbols.append(Reference(found["reference"]))
        else:
            symbols.append(found["words"])
    return tuple(symbols)


def _each(rule: str | None, value: str | None, query: str | None, is_list: bool) -> Each:
    inner = Reference(rule) if rule else _value(value or "")
    return Each(inner, parse_query(query) if query else None, is_list)


@lru_cache(maxsize=1024)
def parse_query(text: str) -> Query:
    """A query like `p(a:type, b:type) & q(b:type)`. Raises ValueError."""
    atoms = []
    for part in text.split("&"):
        found = _ATOM.fullmatch(part)
        if found is None:
            raise ValueError(f"the query {text!r} is not understood at {part.strip()!r}")
        arguments = [word.strip() for word in found[2].split(",") if word.strip()]
        placeholders = [
            (name.strip(), kind.strip() or name.strip())
            for name, _, kind in (word.partition(":") for word in arguments)
        ]
        atoms.append((found[1], tuple(placeholders)))
    return Query(tuple(atoms))


def _value(text: str) -> Value:
    """Names, their attributes, strings, `+` and `or`; nothing else is evaluated. Raises ValueError."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"the expression {text!r} is not understood") from None
    names = frozenset(node.id for node in ast.walk(body) if isinstance(node, ast.Name))
    return Value(_evaluator(body), names)


def _evaluator(node: ast.expr) -> Callable[[Things], str]:
    match node:
        case ast.Constant(value=str(words)):
            return lambda things: words
        case ast.Name(id=name):
            return lambda things: things[name].name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute in _ATTRIBUTES:
            return lambda things: str(getattr(things[name], attribute))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _evaluator(left), _evaluator(right)
            return lambda things: first(things) + second(things)
        case ast.BoolOp(op=ast.Or(), values=values):
            options = [_evaluator(value) for value in values]
            return lambda things: next(filter(None, (option(things) for option in options)), "")
    raise ValueError(f"the expression {ast.unparse(node)!r} is not supported")
