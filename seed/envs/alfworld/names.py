"""What things are called: `cabinet 3` for an id like `cabinet_bar__minus_01_dot_52_bar_...`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_BAR = "_bar_"


def display_names(ids: Iterable[str]) -> dict[str, str]:
    """The name of every id.

    Things of one class are numbered from the end of the sorted ids. An id without a place has no number, and
    its name ends in a blank, as the original engine has it.
    """
    ordered = sorted(set(ids))
    left = Counter(_class_of(name) for name in ordered if _BAR in name)
    names = {}
    for name in ordered:
        kind = _class_of(name)
        if _BAR in name:
            names[name] = f"{kind} {left[kind]}"
            left[kind] -= 1
        else:
            names[name] = f"{kind} "
    return names


def _class_of(name: str) -> str:
    kind, bar, _ = name.partition(_BAR)
    if bar:
        return f"{kind}basin" if "basin" in name else kind
    for code, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        kind = kind.replace(code, sign)
    return kind
