"""Training material for the base model: scripted episodes with skill branches, and reading questions.

The history of an episode never contains a skill. At some turns a *branch* says what a player who has just
been given a skill would do there. Item `index` of a stream depends on (seed, index) only.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from random import Random
from typing import TypeAlias

from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.envs.household import text
from sprout.seed.envs.household.analyzer import analyze
from sprout.seed.envs.household.expert import Noise, next_command, noisy_command
from sprout.seed.envs.household.kinds import kind_of
from sprout.seed.envs.household.memory import Memory
from sprout.seed.envs.household.skills import NULL_SKILL, irrelevant_skill, oracle_skill, wrong_skill
from sprout.seed.envs.household.world import Task, World, generate_world

LABEL_DRAWS = 4
MAX_TURNS = 16  # longer than an episode by default, so that the base has seen what comes late


Labels: TypeAlias = tuple[tuple[str, float], ...]  # commands to imitate, with shares that sum to 1


@dataclass(frozen=True)
class Step:
    """One turn: what was seen, what was done, and what a good player without a skill would do there."""

    observation_before: str
    action: str
    labels: Labels


@dataclass(frozen=True)
class Branch:
    """At turn `turn_index`, right after reading `skill` (of `kind`), what a good player would do."""

    turn_index: int
    skill: str
    labels: Labels
    kind: str


@dataclass(frozen=True)
class Demonstration:
    """One episode; `steps[0].observation_before == first_observation`."""

    task: str
    system_prompt: str
    first_observation: str
    steps: tuple[Step, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class ReadingQuestion:
    """A question about a rendered transcript and its short answer: reading, not the analyzer's format."""

    transcript: str
    question: str
    answer: str


@dataclass(frozen=True)
class DemonstrationMix:
    """Shares of the material; `right` to `null` are relative weights of the branches' skill kinds,
    `random_move` and `invalid` the noise per turn of the noisy trunks."""

    branched_episodes: float = 0.75
    branch_per_turn: float = 0.6
    hinted_trunks: float = 0.3
    noisy_trunks: float = 0.6
    right: float = 0.30
    analyzed: float = 0.25
    wrong: float = 0.10
    irrelevant: float = 0.20
    null: float = 0.15
    random_move: float = 0.08
    invalid: float = 0.08


@dataclass
class Played:
    world: World
    steps: list[TranscriptStep]
    final_observation: str

    def view(self) -> TrajectoryView:
        return TrajectoryView(
            self.world.task.text, tuple(self.steps), self.world.success, self.final_observation
        )


def _rng(seed: int, stream: str, index: int) -> Random:
    digest = blake2b(f"{stream}/{seed}/{index}".encode(), digest_size=8).digest()
    return Random(int.from_bytes(digest, "big"))


def play_world(
    world: World, rng: Random, noise: Noise, skill: str = "", max_turns: int = MAX_TURNS
) -> Played:
    memory = Memory(world.first_observation)
    observation = world.first_observation
    played = Played(world, [], "")
    while not world.success and len(played.steps) < max_turns:
        command = noisy_command(world.task, memory, rng, noise, skill)
        outcome = world.execute(command)
        played.steps.append(TranscriptStep(observation, command, outcome.valid))
        observation = outcome.observation
        memory.observe(observation)
    played.final_observation = observation
    return played


def demonstration(seed: int, index: int, mix: DemonstrationMix | None = None) -> Demonstration:
    """Episode `index` of the stream `seed`, on a task of the train split."""
    mix = mix or DemonstrationMix()
    rng = _rng(seed, "demonstration", index)
    world_seed = rng.getrandbits(48)
    branched = rng.random() < mix.branched_episodes
    hinted = branched and rng.random() < mix.hinted_trunks
    noise = Noise(mix.random_move, mix.invalid) if rng.random() < mix.noisy_trunks else Noise()
    world = generate_world("train", world_seed)
    played = play_world(world, rng, noise, oracle_skill(world) if hinted else "")
    memories = _memories(played)
    steps = tuple(
        Step(step.observation, step.response, _labels(world.task, memory, rng))
        for step, memory in zip(played.steps, memories, strict=True)
    )
    branches = _branches(world_seed, memories, steps, rng, mix) if branched else ()
    return Demonstration(world.task.text, text.SYSTEM_PROMPT, world.first_observation, steps, branches)


def demonstrations(seed: int, mix: DemonstrationMix | None = None) -> Iterator[Demonstration]:
    """The endless stream of `demonstration(seed, 0), demonstration(seed, 1), ...`."""
    return (demonstration(seed, index, mix) for index in count())


def _memories(played: Played) -> list[Memory]:
    """What the player knew before each of its commands."""
    seen = [step.observation for step in played.steps]
    return [Memory.of(seen[: turn + 1]) for turn in range(len(seen))]


def _labels(task: Task, memory: Memory, rng: Random, skill: str = "") -> Labels:
    """Several draws of the good command: a search has many good next places, and one draw would hide that."""
    draws = Counter(next_command(task, memory, rng, skill) for _ in range(LABEL_DRAWS))
    return tuple((command, count / LABEL_DRAWS) for command, count in draws.items())


def _branches(
    world_seed: int, memories: list[Memory], steps: tuple[Step, ...], rng: Random, mix: DemonstrationMix
) -> tuple[Branch, ...]:
    skills = _skills(world_seed, rng)
    kinds = list(skills)
    weights = [mix.right, mix.analyzed, mix.wrong, mix.irrelevant, mix.null]
    task = generate_world("train", world_seed).task
    branches = []
    for turn, (memory, step) in enumerate(zip(memories, steps, strict=True)):
        if rng.random() >= mix.branch_per_turn:
            continue
        kind = rng.choices(kinds, weights)[0]
        ignored = kind in ("irrelevant", "null")
        labels = step.labels if ignored else _labels(task, memory, rng, skills[kind])
        branches.append(Branch(turn, skills[kind], labels, kind))
    return tuple(branches)


def _skills(world_seed: int, rng: Random) -> dict[str, str]:
    """One skill of each kind for the task; the analyzed one comes from another, noisier rollout of it."""
    world = generate_world("train", world_seed)
    noise = Noise(random_move=rng.uniform(0, 0.4), invalid=rng.uniform(0, 0.4))
    other = play_world(generate_world("train", world_seed), rng, noise)
    return {
        "right": oracle_skill(world),
        "analyzed": analyze(other.view())["episode_skill"],
        "wrong": wrong_skill(world, rng),
        "irrelevant": irrelevant_skill(world, rng),
        "null": NULL_SKILL,
    }


def reading_questions(seed: int, index: int, most: int = 4) -> list[ReadingQuestion]:
    """Up to `most` different questions about one noisy rollout of a train task, number `index` of `seed`."""
    transcript, questions, rng = _read(seed, "reading", index)
    chosen = rng.sample(questions, min(most, len(questions)))
    return [ReadingQuestion(transcript, question, answer) for question, answer in chosen]


def reading_reports(seed: int, index: int, most: int = 4) -> list[ReadingQuestion]:
    """Up to `most` pairs of questions about one such rollout, each pair to be answered by one JSON object."""
    transcript, questions, rng = _read(seed, "report", index)
    chosen = rng.sample(questions, min(2 * most, len(questions) // 2 * 2))
    pairs = zip(chosen[::2], chosen[1::2], strict=True)
    return [
        ReadingQuestion(
            transcript,
            f"write json . report : {first} answer : {second}",
            json.dumps({"report": first_answer, "answer": second_answer}),
        )
        for (first, first_answer), (second, second_answer) in pairs
    ]


def _read(seed: int, stream: str, index: int) -> tuple[str, list[tuple[str, str]], Random]:
    """A transcript and what can be asked about it."""
    rng = _rng(seed, stream, index)
    world = generate_world("train", rng.getrandbits(48))
    noise = Noise(random_move=rng.uniform(0, 0.4), invalid=rng.uniform(0, 0.4))
    skill = oracle_skill(world) if rng.random() < 0.3 else ""
    played = play_world(world, rng, noise, skill)
    return played.view().render(), _questions(played, rng), rng


def _questions(played: Played, rng: Random) -> list[tuple[str, str]]:
    """Every question that this transcript can answer."""
    memory = Memory.of([*(step.observation for step in played.steps), played.final_observation])
    task = played.world.task
    options = [
        _ask_where(task.object_kind, memory),
        *(_ask_where(name, memory) for name in list(memory.first_seen)[:3]),
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
    answer = " , ".join(f"{name} in {place}" for name, place in found)
    return f"where was {what} ?", f"{answer} ." if answer else f"{what} was not found ."


def _ask_empty(memory: Memory) -> tuple[str, str]:
    used = {*memory.first_seen.values(), *memory.placed.values()}
    empty = [place for place in memory.contents if place not in used]
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


_IDLE_VERBS = ("go", "open", "look", "inventory", "use")
