"""The small language of household skills: writing, parsing and checking them against a room.

A skill says where objects are (`located`), where they are not (`absent`), among which places one must be
(`among`), and how the task is finished (`process`, `target`); `caution` is advice without a checkable claim.
"""

import re
from dataclasses import dataclass
from random import Random

from sprout.seed.envs.household.kinds import LAMP, LAMP_KIND, OBJECT_KINDS, PROCESSES, kind_of
from sprout.seed.envs.household.world import Task, World

NULL_SKILL = "no advice this time ."
GO_FIRST = "go there first ."
STOP_REPEATING = "do not repeat a failed command ."
SEARCH_ON = "search other places first ."
STATIC_SKILLS = {"default": f"{STOP_REPEATING} {SEARCH_ON}"}  # all that holds in every room
CAUTIONS = (GO_FIRST, STOP_REPEATING, SEARCH_ON)

_NAME = r"[a-z]+ \d+"
_LOCATED = re.compile(rf"({_NAME}) is in ({_NAME}) \.")
_ABSENT = re.compile(rf"(?:other )?([a-z]+) is not in ({_NAME}(?: , {_NAME})*) \.")
_AMONG = re.compile(rf"(?:other )?([a-z]+) is in ({_NAME}(?: or {_NAME})*) \.")
_PROCESS_STEPS = {f"{verb} it with {station}": verb for verb, (station, _) in PROCESSES.items()}
_STEPS = re.compile(
    rf"take (?:it|them) , (?:({'|'.join(_PROCESS_STEPS)}) , )?(?:put (?:it|them) in|use) ({_NAME}) \."
)


@dataclass(frozen=True)
class Skill:
    """What a skill text claims; places and objects by name, `absent` and `among` by object kind."""

    located: tuple[tuple[str, str], ...] = ()
    absent: tuple[tuple[str, tuple[str, ...]], ...] = ()
    among: tuple[tuple[str, tuple[str, ...]], ...] = ()
    process: str | None = None
    target: str | None = None
    caution: str | None = None

    def kinds(self) -> set[str]:
        """Object kinds the skill speaks about."""
        return {kind_of(name) for name, _ in self.located} | {kind for kind, _ in self.absent + self.among}

    def concerns(self, task: Task) -> bool:
        """Whether the skill speaks about this task's object (or its lamp) and about no other object."""
        lamp = {LAMP_KIND} if task.family == "look-under-lamp" else set()
        return bool(self.kinds()) and self.kinds() <= {task.object_kind} | lamp


def write_skill(skill: Skill) -> str:
    """The text of a skill."""
    located_kinds = {kind_of(name) for name, _ in skill.located}
    sentences = [f"{name} is in {place} ." for name, place in skill.located]
    for claims, verb, comma in ((skill.absent, "is not in", " , "), (skill.among, "is in", " or ")):
        for kind, places in claims:
            other = "other " if kind in located_kinds else ""
            sentences.append(f"{other}{kind} {verb} {comma.join(places)} .")
    if skill.target is not None:
        sentences.append(_steps_text(skill))
    if skill.caution is not None:
        sentences.append(skill.caution)
    return " ".join(sentences)


def _steps_text(skill: Skill) -> str:
    carried = sum(name != LAMP for name, _ in skill.located)
    pronoun = "them" if carried > 1 else "it"
    process = f"{skill.process} it with {PROCESSES[skill.process][0]} , " if skill.process else ""
    end = f"use {LAMP}" if skill.target == LAMP else f"put {pronoun} in {skill.target}"
    return f"take {pronoun} , {process}{end} ."


def parse_skill(text: str) -> Skill | None:
    """The claims of a skill text, or None if any part of it is outside the language."""
    located, absent, among = [], [], []
    process = target = caution = None
    rest = " ".join(text.split())
    if not rest or rest == NULL_SKILL:
        return None
    for sentence in re.findall(r"[^.]+ \.|.+$", rest):
        sentence = sentence.strip()
        if match := _LOCATED.fullmatch(sentence):
            located.append((match[1], match[2]))
        elif match := _ABSENT.fullmatch(sentence):
            absent.append((match[1], tuple(match[2].split(" , "))))
        elif match := _AMONG.fullmatch(sentence):
            among.append((match[1], tuple(match[2].split(" or "))))
        elif match := _STEPS.fullmatch(sentence):
            process, target = _PROCESS_STEPS.get(match[1]), match[2]
        elif sentence in CAUTIONS:
            caution = sentence
        else:
            return None
    return Skill(tuple(located), tuple(absent), tuple(among), process, target, caution)


def skill_is_right(text: str, world: World) -> bool:
    """Whether every claim holds of the room's first state and of its task, and at least one is made."""
    skill = parse_skill(text)
    if skill is None or not skill.concerns(world.task):
        return False
    return (
        all(world.origin.get(name) == place for name, place in skill.located)
        and all(_is_absent(kind, places, skill, world) for kind, places in skill.absent)
        and all(_is_among(kind, places, skill, world) for kind, places in skill.among)
        and (skill.target is None or _finishes(skill, world))
    )


def _others(kind: str, skill: Skill, world: World) -> set[str]:
    """First places of the objects of `kind` that the skill does not locate by name."""
    named = {name for name, _ in skill.located}
    return {place for name, place in world.origin.items() if kind_of(name) == kind and name not in named}


def _is_absent(kind: str, places: tuple[str, ...], skill: Skill, world: World) -> bool:
    return set(places) <= set(world.receptacles) and not _others(kind, skill, world) & set(places)


def _is_among(kind: str, places: tuple[str, ...], skill: Skill, world: World) -> bool:
    return bool(_others(kind, skill, world) & set(places)) and set(places) <= set(world.receptacles)


def _finishes(skill: Skill, world: World) -> bool:
    task = world.task
    target = skill.target or ""
    in_room = target == LAMP or target in world.receptacles
    return in_room and kind_of(target) == task.target_kind and skill.process == task.process


def oracle_skill(world: World) -> str:
    """The skill of someone who has seen the whole room."""
    task = world.task
    names = [name for name in world.origin if kind_of(name) == task.object_kind][: task.count]
    located = [(name, world.origin[name]) for name in names]
    return write_skill(_complete(world, located, world.origin[LAMP]))


def wrong_skill(world: World, rng: Random) -> str:
    """A well-formed skill about the right object that sends to places where it is not."""
    task = world.task
    names = [name for name in world.origin if kind_of(name) == task.object_kind]
    taken = {world.origin[name] for name in names}
    free = [place for place in world.receptacles if place not in taken]
    located = list(zip(names[: task.count], rng.sample(free, task.count), strict=True))
    return write_skill(_complete(world, located, world.origin[LAMP]))


def irrelevant_skill(world: World, rng: Random) -> str:
    """A well-formed skill about another kind of object, as if from another task."""
    kind = rng.choice([kind for kind in OBJECT_KINDS if kind != world.task.object_kind])
    places = rng.sample(world.receptacles, rng.randint(2, 5))
    if rng.random() < 0.25:
        return write_skill(Skill(absent=((kind, tuple(places)),)))
    family = rng.choice(OBJECT_KINDS[kind].families)
    names = [f"{kind} 1", f"{kind} 2"] if family == "pick-two" else [f"{kind} 1"]
    located = tuple(zip(names, places, strict=False))
    if family == "look-under-lamp":
        return write_skill(Skill((*located, (LAMP, places[-1])), target=LAMP))
    process = family if family in PROCESSES else None
    return write_skill(Skill(located, process=process, target=rng.choice(world.receptacles)))


def _complete(world: World, located: list[tuple[str, str]], lamp_place: str) -> Skill:
    task = world.task
    if task.family == "look-under-lamp":
        return Skill((*located, (LAMP, lamp_place)), target=LAMP)
    target = next(place for place in world.receptacles if kind_of(place) == task.target_kind)
    return Skill(tuple(located), process=task.process, target=target)
