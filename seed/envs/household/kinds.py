"""What exists in the household world: kinds of receptacles and objects, their habits, families and splits."""

from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b

CLOSED_KINDS = ("fridge", "microwave", "cabinet", "drawer", "safe", "box")
OPEN_KINDS = ("sink", "countertop", "shelf", "table", "desk", "bed", "sofa")
RECEPTACLE_KINDS = CLOSED_KINDS + OPEN_KINDS
MOST_OF_A_KIND = {"cabinet": 3, "drawer": 3, "shelf": 2, "countertop": 2, "table": 2}
TARGET_KINDS = tuple(kind for kind in RECEPTACLE_KINDS if kind not in ("microwave", "sink"))
LAMP_KIND, LAMP = "lamp", "lamp 1"
LAMP_PLACES = ("table", "desk", "shelf", "countertop", "bed", "sofa")

# Processing verb -> (station where it happens, the adjective tasks use for the result).
PROCESSES = {
    "clean": ("sink 1", "clean"),
    "heat": ("microwave 1", "hot"),
    "cool": ("fridge 1", "cool"),
}
FAMILIES = ("pick-and-place", "look-under-lamp", "clean", "heat", "cool", "pick-two")


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object: where it usually is, and which families may ask for it."""

    name: str
    habit: str
    families: tuple[str, ...]


_FOOD = ("pick-and-place", "clean", "heat", "cool", "pick-two")
_DISH = ("pick-and-place", "clean", "heat", "cool", "pick-two")
_TOOL = ("pick-and-place", "clean", "pick-two")
_THING = ("pick-and-place", "look-under-lamp", "pick-two")

OBJECT_KINDS = {
    kind.name: kind
    for kind in (
        ObjectKind("apple", "fridge", _FOOD),
        ObjectKind("tomato", "countertop", _FOOD),
        ObjectKind("potato", "box", _FOOD),
        ObjectKind("egg", "fridge", _FOOD),
        ObjectKind("bread", "countertop", _FOOD),
        ObjectKind("lettuce", "fridge", _FOOD),
        ObjectKind("mug", "cabinet", _DISH),
        ObjectKind("cup", "shelf", _DISH),
        ObjectKind("plate", "cabinet", _DISH),
        ObjectKind("bowl", "table", _DISH),
        ObjectKind("pan", "cabinet", _DISH),
        ObjectKind("fork", "drawer", _TOOL),
        ObjectKind("knife", "drawer", _TOOL),
        ObjectKind("spoon", "sink", _TOOL),
        ObjectKind("towel", "bed", _TOOL),
        ObjectKind("soap", "sink", _TOOL),
        ObjectKind("book", "shelf", _THING),
        ObjectKind("pen", "desk", _THING),
        ObjectKind("pencil", "drawer", _THING),
        ObjectKind("phone", "sofa", _THING),
        ObjectKind("watch", "safe", _THING),
        ObjectKind("key", "box", _THING),
        ObjectKind("card", "desk", _THING),
        ObjectKind("coin", "safe", _THING),
        ObjectKind("pillow", "sofa", _THING),
        ObjectKind("radio", "table", _THING),
    )
}

HELD_OUT_SPLITS = ("select", "report")
SPLITS = ("train", *HELD_OUT_SPLITS)
_HELD_OUT_SHARE = 0.3


def is_closed_kind(kind: str) -> bool:
    """Whether receptacles of this kind start closed and have to be opened."""
    return kind in CLOSED_KINDS


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """`"mug 1"` -> `"mug"`."""
    return name.rpartition(" ")[0]


def is_held_out(object_kind: str, target_kind: str) -> bool:
    """Whether the pair belongs to the evaluation splits; fixed for ever by a hash of the two names."""
    digest = blake2b(f"{object_kind}>{target_kind}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < _HELD_OUT_SHARE


@cache
def pairs(split: str, family: str) -> tuple[tuple[str, str], ...]:
    """(object kind, target kind) pairs that tasks of `family` may use in `split`.

    An object's habitual place is never its target: there would be nothing to do.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; use one of {', '.join(SPLITS)}")
    targets = (LAMP_KIND,) if family == "look-under-lamp" else TARGET_KINDS
    return tuple(
        (kind.name, target)
        for kind in OBJECT_KINDS.values()
        for target in targets
        if family in kind.families
        and target != kind.habit
        and is_held_out(kind.name, target) == (split in HELD_OUT_SPLITS)
    )
