"""The real games, and a small game written here that holds what the real ones do not."""

import json
import tarfile

import pytest
from toy_game import DOMAIN, GRAMMAR, PROBLEM


@pytest.fixture(scope="session")
def alfworld_data(shared_data, tmp_path_factory):
    """The folder of the real games."""
    archive = shared_data / "alfworld-games.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not there")
    folder = tmp_path_factory.mktemp("alfworld")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def game_files(alfworld_data):
    """Every real game, in a fixed order."""
    return sorted(alfworld_data.rglob("game.tw-pddl"))


@pytest.fixture
def toy_game():
    """The fields of a game file that no planner has touched."""
    return {
        "pddl_domain": DOMAIN, "pddl_problem": PROBLEM, "grammar": GRAMMAR,
        "walkthrough": ["take key 1"], "solvable": True,
    }  # fmt: skip


@pytest.fixture
def write_game(tmp_path):
    """Writes a game file where a data folder has it; gives the data folder and the file."""

    def write(fields, family="pick_and_place_simple", split="train", trial="trial_1"):
        path = tmp_path / "json_2.1.1" / split / f"{family}-Mug-None-Desk-1" / trial / "game.tw-pddl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
        return tmp_path, path

    return write
