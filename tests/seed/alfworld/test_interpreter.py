"""The interpreter on real games and on a small one whose every state is known."""

import json
from random import Random

import pytest

from sprout.seed.envs.alfworld.game import GameFileError, build_game, load_game, read_game_file
from sprout.seed.envs.alfworld.interpreter import Interpreter
from sprout.seed.envs.alfworld.names import display_names


@pytest.fixture
def toy(toy_game, write_game):
    return Interpreter(load_game(write_game(toy_game)[1]))


def walk_through(path):
    game = load_game(path)
    play = Interpreter(game)
    frames = [play.reset()]
    for command in game.file.walkthrough:
        assert not frames[-1].won and command in frames[-1].commands, (path, command)
        frames.append(play.step(command))
    return frames


def test_walkthroughs_win(game_files):
    for path in game_files[::19]:
        assert walk_through(path)[-1].won, path


@pytest.mark.slow
def test_every_walkthrough_wins(game_files):
    assert len(game_files) == 380
    for path in game_files:
        assert walk_through(path)[-1].won, path


def test_texts_of_a_real_game(game_files):
    [path] = [p for p in game_files if "look_at_obj_in_light-AlarmClock-None-DeskLamp-301" in str(p)][:1]
    first, *_, last = walk_through(path)
    assert first.observation.startswith(
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. "
        "Looking quickly around you, you see a "
    )
    assert first.observation.endswith("\n\nYour task is to: look at alarmclock under the desklamp.")
    assert {"help", "inventory", "look", "go to bed 1"} <= set(first.commands)
    assert list(first.commands) == sorted(set(first.commands))
    assert last.won and last.reward == 1.0


def test_habits_of_the_original_engine(game_files):
    play = Interpreter(load_game(game_files[0]))
    play.reset()
    assert play.step("help").observation.startswith("Available commands:\n  look:")
    arrived = play.step("go to dresser 1")
    assert arrived.observation.startswith("You arrive at dresser 1. On the dresser 1, you see ")
    assert "go to dresser 1" not in arrived.commands and "examine dresser 1" in arrived.commands
    assert play.step("go to dresser 1").observation == "Nothing happens."
    assert not any(command.startswith("examine alarmclock") for command in arrived.commands)
    taken = play.step("take alarmclock 2 from dresser 1")
    if taken.observation != "Nothing happens.":
        assert "examine alarmclock 2" in taken.commands
    assert play.step("GO TO dresser 1").commands == play.step("look up").commands


def test_plays_of_one_game_do_not_touch_each_other(game_files):
    game = load_game(game_files[3])
    one, other = Interpreter(game), Interpreter(game)
    first = one.reset()
    assert other.reset() == first
    rng = Random(0)
    for _ in range(30):
        one.step(rng.choice(sorted(one.plays)))
    assert other.step("look").observation and one.reset() == first


def test_toy_game(toy):
    start = toy.reset()
    assert start.observation == "You see a hall 2, and a hall 1.\n\nYour task is to: bring the gem."
    assert start.commands == ("switch", "take key 1", "wait", "walk to hall 1")  # no walk to where one is
    assert toy.step("wait").observation == "Time passes."
    taken = toy.step("  take key 1 ")
    assert taken.observation == "Gone: key 1."
    assert taken.commands == ("drop key 1", "switch", "wait", "walk to cell 1", "walk to hall 1")
    assert toy.step("walk to hall 1").observation == "The hall 1 is lit: nothing."
    assert toy.step("drop key 1").observation == "Gone: nothing."
    assert "walk to cell 1" not in toy.step("walk to hall 2").commands
    assert toy.step("walk to cell 1").observation == "Nothing happens."


def test_toy_game_is_won_by_its_goal(toy):
    toy.reset()
    for command in ("take key 1", "switch", "walk to cell 1", "drop key 1", "take gem 1"):
        assert not toy.step(command).won
    assert toy.step("walk to hall 2").observation == "It is dark."
    assert toy.step("drop gem 1").won
    assert not toy.step("switch").won  # on again


def test_numbers_count_from_the_end():
    assert display_names(
        ["mug_bar_a", "mug_bar_b", "sink_bar_1_bar_sinkbasin", "sink_bar_1", "agent1", "a_minus_b"]
    ) == {
        "mug_bar_a": "mug 2",
        "mug_bar_b": "mug 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
        "sink_bar_1": "sink 1",
        "agent1": "agent1 ",
        "a_minus_b": "a-b ",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("not json", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ({"grammar": None}, "has no text 'grammar'"),
        ({"walkthrough": "go"}, "walkthrough is no list of commands"),
        ({"pddl_domain": "(define (domain d)"}, r"a '\(' is never closed"),
        ({"pddl_problem": "(define (problem p)) )"}, r"a '\)' without '\('"),
        ({"pddl_problem": "(define (problem p))"}, "exactly one goal"),
        (
            {"pddl_problem": "(define (problem p) (:init (on a b)) (:goal ()))"},
            "names 'a', which is not an object",
        ),
        ({"grammar": "action walk { oops }"}, "grammar line 1: 'oops }' is not understood"),
        ({"grammar": 'grammar :: """{"intro": 3}""";'}, "a grammar block is not as expected"),
        ({"grammar": ""}, "the grammar has no text for the action 'walk'"),
    ],
)
def test_broken_files_are_named_in_one_line(toy_game, write_game, change, message):
    _, path = write_game(change if isinstance(change, str) else toy_game | change)
    with pytest.raises(GameFileError, match=message) as raised:
        load_game(path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)
    assert "download the games again" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "command"),
    [
        (("#places#", "#nothing#"), None),
        (("#places#", "#went#"), None),
        (('"rhs": "Gone: [', '"rhs": "#missing#Gone: ['), "take key 1"),
        (('feedback :: "#missing#"', 'feedback :: "#nothing#"'), "take key 1"),
    ],
)
def test_what_shows_in_play_is_named_too(toy_game, write_game, change, command):
    _, path = write_game(toy_game | {"grammar": toy_game["grammar"].replace(*change)})
    play = Interpreter(load_game(path))
    with pytest.raises(GameFileError, match="download the games again") as raised:
        play.reset()
        play.step(command)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(GameFileError, match=r"game.tw-pddl: cannot be read \(No such file"):
        load_game(tmp_path / "game.tw-pddl")


def test_expressions_are_not_run(toy_game, write_game):
    _, path = write_game(toy_game | {"grammar": toy_game["grammar"].replace("{p.indefinite}", "{open('x')}")})
    with pytest.raises(GameFileError, match="is not supported"):
        load_game(path)


def test_same_domain_is_parsed_once(game_files):
    one, other = (build_game(read_game_file(path)) for path in game_files[:2])
    assert one.domain is other.domain
    assert json.loads(game_files[0].read_text())["pddl_domain"]
