"""Training material for the base model: scripted episodes with skill branches.

The history of an episode never contains a skill. At some turns a *branch* says what a player who has just
been given a skill would do there. Item `index` of a stream depends on (seed, index) only.
"""

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import TypeAlias

from sprout.seed.analyzer.transcript import TrajectoryView, TranscriptStep
from sprout.seed.envs.household.analyzer import analyze
from sprout.seed.envs.household.expert import Noise, next_command, noisy_command
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
    first_observation: str
    steps: tuple[Step, ...]
    branches: tuple[Branch, ...]


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


def item_rng(seed: int, stream: str, index: int) -> Random:
    """The randomness of item `index` of a stream."""
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
    rng = item_rng(seed, "demonstration", index)
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
    return Demonstration(world.task.text, world.first_observation, steps, branches)


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
