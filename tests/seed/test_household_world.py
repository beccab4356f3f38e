"""Household rooms, their splits, and commands."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.envs.household.kinds import (
    CLOSED_KINDS,
    FAMILIES,
    HELD_OUT_SPLITS,
    OBJECT_KINDS,
    PROCESSES,
    SPLITS,
    TARGET_KINDS,
    is_held_out,
    kind_of,
    pairs,
)
from sprout.seed.envs.household.memory import Memory, parse_task
from sprout.seed.envs.household.world import Task, World, generate_world

COMMAND_WORDS = "go to open take from put in clean heat cool with use look inventory lamp 1 2 3 , ."
WORDS = sorted(
    set(COMMAND_WORDS.split())
    | set(OBJECT_KINDS)
    | set(TARGET_KINDS)
    | {"sink", "microwave", "zzz", "GO", "\n"}
)


def state(world: World) -> str:
    return json.dumps(
        [
            world.contents,
            sorted(world.closed),
            world.position,
            world.carried,
            {name: sorted(done) for name, done in world.processed.items()},
            world.looked_at,
        ]
    )


@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_same_episode(split):
    for seed in range(20):
        first, second = generate_world(split, seed), generate_world(split, seed)
        assert (first.task, first.receptacles, first.origin) == (
            second.task,
            second.receptacles,
            second.origin,
        )


def test_a_room_is_fixed_for_ever():
    world = generate_world("train", 0)
    assert world.task == Task("cool", "cup", "fridge")
    assert [kind_of(place) for place in world.receptacles] == (
        ["fridge", "microwave", "cabinet", "drawer", "safe", "sink", "shelf", "table"]
    )
    assert world.origin["cup 1"] == "safe 1"


def test_splits_are_disjoint_in_pairs_and_rooms():
    for family in FAMILIES:
        train = set(pairs("train", family))
        assert train and pairs("select", family)
        for split in HELD_OUT_SPLITS:
            assert not train & set(pairs(split, family))
    rooms = {split: {state(generate_world(split, seed)) for seed in range(300)} for split in SPLITS}
    assert not rooms["select"] & rooms["report"] and not rooms["train"] & rooms["select"]
    for split in SPLITS:
        for seed in range(100):
            task = generate_world(split, seed).task
            assert is_held_out(task.object_kind, task.target_kind) == (split != "train")


def test_rooms_hold_what_tasks_need():
    for seed in range(400):
        world = generate_world("train", seed, (8, 14), (6, 12))
        kinds = [kind_of(place) for place in world.receptacles]
        assert {"fridge", "microwave", "sink"} <= set(kinds)
        assert 8 <= len(kinds) <= 14 and len(set(world.receptacles)) == len(kinds)
        assert 6 <= len(world.origin) - 1 <= 12
        task = world.task
        assert task.target_kind in [*kinds, "lamp"]
        assert kind_of(world.origin["lamp 1"]) not in CLOSED_KINDS
        wanted = [place for name, place in world.origin.items() if kind_of(name) == task.object_kind]
        assert len(wanted) >= task.count
        assert task.target_kind not in {kind_of(place) for place in wanted}
        assert not world.success


def test_habits_hold_in_every_split():
    for split in SPLITS:
        at_home = [
            kind_of(place) == OBJECT_KINDS[world.task.object_kind].habit
            for world in (generate_world(split, seed) for seed in range(400))
            for name, place in world.origin.items()
            if kind_of(name) == world.task.object_kind
        ]
        assert 0.58 < sum(at_home) / len(at_home) < 0.72


def small_world(task: Task) -> World:
    room = ["fridge 1", "microwave 1", "drawer 1", "sink 1", "table 1"]
    return World(task, room, {"mug 1": "drawer 1", "pen 1": "table 1", "lamp 1": "table 1"})


def say(world: World, *commands: str) -> list[str]:
    return [world.execute(command).observation for command in commands]


def test_an_episode_word_by_word():
    world = small_world(Task("clean", "mug", "table"))
    assert world.first_observation == "you see fridge 1 , microwave 1 , drawer 1 , sink 1 , table 1 ."
    assert say(
        world,
        "go to drawer 1",
        "open drawer 1",
        "take mug 1 from drawer 1",
        "look",
        "inventory",
        "go to sink 1",
        "clean mug 1 with sink 1",
        "go to table 1",
    ) == [
        "you are at drawer 1 . it is closed .",
        "drawer 1 is open . mug 1 is in drawer 1 .",
        "you take mug 1 from drawer 1 .",
        "you are at drawer 1 . drawer 1 is empty .",
        "you carry mug 1 .",
        "you are at sink 1 . sink 1 is empty .",
        "you clean mug 1 with sink 1 .",
        "you are at table 1 . pen 1 is in table 1 . lamp 1 is in table 1 .",
    ]
    assert not world.success
    assert say(world, "put mug 1 in table 1") == ["you put mug 1 in table 1 ."]
    assert world.success


def test_heating_undoes_cooling():
    world = small_world(Task("cool", "mug", "table"))
    say(world, "go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to fridge 1")
    say(world, "cool mug 1 with fridge 1", "go to microwave 1", "heat mug 1 with microwave 1")
    say(world, "go to table 1", "put mug 1 in table 1")
    assert not world.success and world.processed["mug 1"] == {"heat"}


def test_looking_under_the_lamp():
    world = small_world(Task("look-under-lamp", "pen", "lamp"))
    say(world, "go to table 1")
    assert say(world, "use lamp 1") == ["you use lamp 1 ."] and not world.success
    say(world, "take pen 1 from table 1")
    assert say(world, "use lamp 1") == ["you look at pen 1 under lamp 1 ."] and world.success


@pytest.mark.parametrize(
    "command",
    [
        "",
        "go to attic 1",
        "go to table 1",
        "go to drawer",
        "open drawer 1",
        "open table 1",
        "take mug 1 from drawer 1",
        "take lamp 1 from table 1",
        "take pen 1 from drawer 1",
        "put pen 1 in table 1",
        "clean pen 1 with sink 1",
        "heat pen 1 with sink 1",
        "look around",
        "take pen 1 from table 1 .",
    ],
)
def test_impossible_commands_change_nothing(command):
    world = small_world(Task("pick-and-place", "mug", "table"))
    say(world, "go to table 1")
    before = state(world)
    outcome = world.execute(command)
    assert (outcome.observation, outcome.valid) == ("nothing happens .", False)
    assert state(world) == before


def test_only_one_object_is_carried():
    world = small_world(Task("pick-and-place", "mug", "table"))
    say(world, "go to table 1", "take pen 1 from table 1", "go to drawer 1", "open drawer 1")
    assert not world.execute("take mug 1 from drawer 1").valid


def executable(world: World) -> set[str]:
    """Every command that the rules allow now, from the rules and not from the interpreter."""
    here, carried = world.position, world.carried
    commands = {"look", "inventory"} | {f"go to {place}" for place in world.receptacles if place != here}
    if here in world.closed:
        return commands | {f"open {here}"}
    inside = world.contents.get(here, [])
    if carried is None:
        commands |= {f"take {name} from {here}" for name in inside if name != "lamp 1"}
    elif here is not None:
        commands.add(f"put {carried} in {here}")
    if "lamp 1" in inside:
        commands.add("use lamp 1")
    return commands


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.one_of(st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join), st.text(max_size=20))),
    st.randoms(use_true_random=False),
)
def test_any_text_is_valid_exactly_when_executable(seed, texts, rng):
    world = generate_world("train", seed)
    for command in texts:
        possible = executable(world)
        for verb, (station, _) in PROCESSES.items():
            if world.carried and world.position == station:
                possible.add(f"{verb} {world.carried} with {station}")
        if rng.random() < 0.7:
            command = rng.choice(sorted(possible))
        before = state(world)
        outcome = world.execute(command)
        assert outcome.valid == (" ".join(command.lower().split()) in possible)
        assert outcome.valid or state(world) == before


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_memory_agrees_with_the_room(seed, rng):
    """Random valid play: all that is remembered from the text is true of the hidden state."""
    world = generate_world("train", seed)
    memory = Memory(world.first_observation)
    for _ in range(30):
        command = rng.choice(sorted(executable(world)))
        memory.observe(world.execute(command).observation)
        assert memory.position == world.position and memory.carried == world.carried
        for place, names in memory.contents.items():
            assert names == world.contents[place]
        assert all(world.origin[name] == place for name, place in memory.first_seen.items())
        closed = {place for place in world.receptacles if memory.is_closed(place)}
        assert closed == world.closed


@pytest.mark.parametrize("family", FAMILIES)
def test_task_text_round_trip(family):
    for object_kind, target_kind in pairs("train", family):
        task = Task(family, object_kind, target_kind)
        assert parse_task(task.text) == task


def test_parse_task_refuses_other_text():
    with pytest.raises(ValueError, match="not a household task"):
        parse_task("win the game")
