"""Reading lessons for the base model: questions about a transcript, each with its short answer.

They teach to find things in a transcript and to say them in the sentences of the world, not the analyzer's
format. Item `index` of a stream depends on (seed, index) only. Questions about one transcript share its rows
in the forest, so every question that it can answer is asked.
"""

import json
from dataclasses import dataclass
from random import Random

from sprout.seed.envs.household.demonstrations import Played, item_rng, play_world
from sprout.seed.envs.household.expert import Noise
from sprout.seed.envs.household.kinds import LAMP, LAMP_KIND, OBJECT_KINDS, kind_of
from sprout.seed.envs.household.memory import Memory
from sprout.seed.envs.household.skills import Skill, oracle_skill, write_skill
from sprout.seed.envs.household.world import Task, generate_world

OBJECTS_ASKED = 4
PAIRS = 4  # answered as JSON
SURVEYS = 3  # orders in which all that was seen is asked for
MIXED = 4  # kinds in a survey of seen and unseen ones
_IDLE_VERBS = ("go", "open", "look", "inventory", "use")


@dataclass(frozen=True)
class ReadingQuestion:
    """A question about a rendered transcript and its short answer: reading, not the analyzer's format."""

    transcript: str
    question: str
    answer: str


def reading_questions(seed: int, index: int) -> list[ReadingQuestion]:
    """Every question about one noisy rollout of a train task, number `index` of `seed`."""
    transcript, questions, *_ = _read(seed, "reading", index)
    return [ReadingQuestion(transcript, question, answer) for question, answer in questions]


def reading_reports(seed: int, index: int) -> list[ReadingQuestion]:
    """Pairs of questions about such a rollout, each to be answered by one JSON object, and surveys of it."""
    transcript, questions, rng, memory = _read(seed, "report", index)
    rng.shuffle(questions)
    pairs = [
        (
            f"write json . report : {first} answer : {second}",
            json.dumps({"report": first_answer, "answer": second_answer}),
        )
        for (first, first_answer), (second, second_answer) in zip(
            questions[: 2 * PAIRS : 2], questions[1 : 2 * PAIRS : 2], strict=True
        )
    ]
    asked = dict.fromkeys([*pairs, *_surveys(memory, rng)])
    return [ReadingQuestion(transcript, question, answer) for question, answer in asked]


def _read(seed: int, stream: str, index: int) -> tuple[str, list[tuple[str, str]], Random, Memory]:
    """A transcript, what can be asked about it, and what it shows."""
    rng = item_rng(seed, stream, index)
    world = generate_world("train", rng.getrandbits(48))
    noise = Noise(random_move=rng.uniform(0, 0.4), invalid=rng.uniform(0, 0.4))
    skill = oracle_skill(world) if rng.random() < 0.3 else ""
    played = play_world(world, rng, noise, skill)
    memory = Memory.of([*(step.observation for step in played.steps), played.final_observation])
    return played.view().render(), _questions(played, memory, rng), rng, memory


def _surveys(memory: Memory, rng: Random) -> list[tuple[str, str]]:
    """Questions with long answers: each place in them is one more thing to find, at few rows."""
    seen = list(memory.first_seen)
    kinds = {kind_of(name) for name in seen} - {LAMP_KIND}
    others = rng.sample(sorted(OBJECT_KINDS.keys() - kinds), 2)
    mixed = [*rng.sample(sorted(kinds), min(MIXED, len(kinds))), *others[:1]]
    rng.shuffle(mixed)
    return [
        *(_ask_where_all(rng.sample(seen, len(seen)), memory) for _ in range(SURVEYS) if seen),
        _ask_where_all(mixed, memory),
        *(ask(kind, memory) for kind in (mixed[0], others[1]) for ask in (_ask_where_not, _ask_where_can)),
    ]


def _ask_where_all(names: list[str], memory: Memory) -> tuple[str, str]:
    """Of several objects or kinds, one after the other."""
    return f"where was {' , '.join(names)} ?", " ".join(_ask_where(name, memory)[1] for name in names)


def _questions(played: Played, memory: Memory, rng: Random) -> list[tuple[str, str]]:
    """Every question that this transcript can answer, about the task's object, some seen and one unseen."""
    task = played.world.task
    seen = list(memory.first_seen)
    kinds = [task.object_kind, rng.choice(list(OBJECT_KINDS))]
    options = [
        *(_ask_where(what, memory) for what in (*kinds, *rng.sample(seen, min(OBJECTS_ASKED, len(seen))))),
        *(_ask_where_not(kind, memory) for kind in kinds),
        *(_ask_where_can(kind, memory) for kind in kinds),
        _ask_plan(task, memory),
        ("what was the task ?", task.text),
        ("did it succeed ?", "yes ." if played.world.success else "no ."),
        _ask_empty(memory),
        _ask_contents(memory, rng),
        _ask_done(played),
        _ask_unseen(memory),
        ("how many commands were invalid ?", f"{sum(not step.valid for step in played.steps)} ."),
    ]
    return list(dict.fromkeys(options))


def _ask_where(what: str, memory: Memory) -> tuple[str, str]:
    """Of one object by name, or of all objects of a kind."""
    found = [(name, place) for name, place in memory.first_seen.items() if what in (name, kind_of(name))]
    answer = write_skill(Skill(located=tuple(found))) or f"{what} was not found ."
    return f"where was {what} ?", answer


def _ask_where_not(kind: str, memory: Memory) -> tuple[str, str]:
    """Places that were seen without it."""
    holding = _holding(kind, memory)
    places = tuple(place for place in memory.seen() if place not in holding)
    return f"where was {kind} not ?", _of_others(Skill(absent=((kind, places),)), places, holding)


def _ask_where_can(kind: str, memory: Memory) -> tuple[str, str]:
    """Places that were not seen."""
    places = tuple(memory.unseen())
    return f"where can {kind} be ?", _of_others(
        Skill(among=((kind, places),)), places, _holding(kind, memory)
    )


def _holding(kind: str, memory: Memory) -> set[str]:
    """Places where an object of the kind was first seen."""
    return {place for name, place in memory.first_seen.items() if kind_of(name) == kind}


def _of_others(claim: Skill, places: tuple[str, ...], holding: set[str]) -> str:
    """The claim in words; about other objects of the kind if some were seen."""
    return f"{'other ' if holding else ''}{write_skill(claim)}" if places else "none ."


def _ask_plan(task: Task, memory: Memory) -> tuple[str, str]:
    """How the task is done once its object is at hand."""
    fitting = [place for place in memory.receptacles if kind_of(place) == task.target_kind]
    target = LAMP if task.family == "look-under-lamp" else fitting[0]
    located = [
        (name, place) for name, place in memory.first_seen.items() if kind_of(name) == task.object_kind
    ]
    steps = write_skill(Skill(tuple(located[: task.count]), process=task.process, target=target))
    return "how to do the task ?", steps[steps.rindex("take") :]


def _ask_empty(memory: Memory) -> tuple[str, str]:
    used = {*memory.first_seen.values(), *memory.placed.values()}
    empty = [place for place in memory.seen() if place not in used]
    return "which places were empty ?", f"{' , '.join(empty) or 'none'} ."


def _ask_unseen(memory: Memory) -> tuple[str, str]:
    return "which places were not seen ?", f"{' , '.join(memory.unseen()) or 'none'} ."


def _ask_contents(memory: Memory, rng: Random) -> tuple[str, str]:
    place = rng.choice(memory.receptacles)
    if place not in memory.contents:
        return f"what was in {place} ?", f"{place} was not seen ."
    names = [name for name, where in memory.first_seen.items() if where == place]
    return f"what was in {place} ?", f"{' , '.join(names) or 'nothing'} ."


def _ask_done(played: Played) -> tuple[str, str]:
    """What happened to the first object that was taken, in order."""
    done = [
        step.response for step in played.steps if step.valid and step.response.split()[0] not in _IDLE_VERBS
    ]
    taken = next((command.split()[1:3] for command in done if command.startswith("take")), None)
    if taken is None:
        return "what was taken ?", "nothing ."
    name = " ".join(taken)
    about = [command for command in done if command.split()[1:3] == taken]
    return f"what was done with {name} ?", f"{' , '.join(about)} ."
