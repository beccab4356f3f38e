"""Environments in workers: the same episodes with any number of them, whatever dies, hangs or raises."""

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from faulty_environments import Odd, Rooms, broken
from rich.console import Console
from test_resume import assert_same_training, before_training
from test_rollout import SETTINGS, TASKS, dump

from sprout.engine.generator import Generator
from sprout.seed.config import load_config
from sprout.seed.envs import make_env
from sprout.seed.episode import Task
from sprout.seed.rollout import Rollouts
from sprout.seed.run import perform, start
from sprout.seed.run_dir import differing_keys
from sprout.seed.workers import WorkerError, Workers

PROGRAM = (
    "import sys; sys.path.insert(0, {folder!r}); from faulty_environments import holder; holder({how!r})"
)
UNTIMED = 60.0


@pytest.fixture(scope="module")
def decoder(word_chat, make_decoder):
    return make_decoder(max(word_chat.encode("end"), default=0) + 8)


@pytest.fixture
def play(decoder, word_chat):
    """Plays tasks in environments of `make`; the result with its metrics."""

    def run(make, tasks=TASKS, members=1):
        config = load_config(None, SETTINGS)
        generator = Generator(decoder, stop_id=word_chat.stop_id, cache_tokens=config.rollout.cache_tokens)
        result = Rollouts(generator, word_chat, make, config).run(tasks, members, update=0)
        generator.reset()
        return result

    return run


@pytest.fixture
def workers():
    """Makes `Workers`, and ends them."""
    made = []

    def start(make, number, step_s=UNTIMED, reset_s=UNTIMED):
        made.append(Workers(make, number, step_s, reset_s))
        return made[-1]

    yield start
    for each in made:
        each.close()


def gone(pid, seconds=10.0):
    """Whether the process ends, with all its threads and so its pipes, within so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            threads = len(os.listdir(f"/proc/{pid}/task"))
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z" and threads <= 1:
            return True
        time.sleep(0.05)
    return False


def test_any_number_of_workers_plays_the_same_episodes(play, workers):
    want = play(Rooms, members=3)
    for number in (1, 3):
        pool = workers(Rooms, number)
        for _ in range(2):  # the second time in environments made anew in the same processes
            got = play(pool, members=3)
            assert dump(got) == dump(want) and got.incidents == want.incidents


@pytest.mark.parametrize("what", ["raise", "hang", "kill", "exit"])
@pytest.mark.parametrize("when", ["reset", "step"])
def test_an_episode_at_fault_is_retried_alone(play, workers, tmp_path, caplog, what, when):
    want = play(Rooms)
    faults = {8: (what, 0 if when == "reset" else 2, 1)}
    limits = (1.0, 4.0) if what == "hang" else (UNTIMED, UNTIMED)
    got = play(workers(partial(Rooms, tmp_path, faults), 1, *limits))
    assert dump(got) == dump(want)
    counted = {name: count for name, count in got.incidents.items() if count}
    restarts = {} if what == "raise" else {"worker_restarts": 1}
    assert counted == {"retries": 1, **restarts, **({"timeouts": 1} if what == "hang" else {})}
    said = {
        "raise": "OSError: the socket is gone",
        "hang": f"no answer to {when} in {limits[when == 'reset']:g} s (env.{when}_timeout_s)",
        "kill": f"its worker was ended by SIGKILL in {when}",
        "exit": f"its worker ended with code 3 in {when}",
    }
    assert caplog.messages == [f"task train-8, member 0, attempt 1: {said[what]}"]


def test_a_group_that_keeps_dying_is_dropped_whole_and_counted(play, workers, tmp_path):
    want = play(Rooms, members=2)
    got = play(workers(partial(Rooms, tmp_path, {8: ("kill", 1, 99)}), 2), members=2)
    assert dump(got) == dump(want)[:2] + dump(want)[4:]
    assert got.incidents["dropped_groups"] == 1
    assert got.incidents["worker_restarts"] >= 2


def test_when_every_group_is_dropped_the_run_ends_with_the_last_failure(play, workers):
    with pytest.raises(RuntimeError, match=r"every group was dropped.*FileNotFoundError: no games in /data"):
        play(workers(broken, 2))


def test_random_faults_come_out_the_same_with_any_number_of_workers(play, workers, tmp_path):
    draw, tasks = random.Random(0), [Task("train", seed) for seed in range(12)]
    chosen = draw.sample(range(12), 5)
    faults = {
        seed: (draw.choice(["raise", "kill"]), draw.randrange(3), draw.choice([1, 2])) for seed in chosen
    }
    want, dropped = play(Rooms, tasks), sum(times == 2 for *_, times in faults.values())
    assert dropped > 0
    kept = [t for t in dump(want) if faults.get(t["seed"], (0, 0, 0))[2] < 2]
    for number in (1, 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        got = play(workers(partial(Rooms, folder, faults), number), tasks)
        assert dump(got) == kept
        assert got.incidents["dropped_groups"] == dropped
        assert got.incidents["retries"] == len(faults)
        deaths = sum(times for what, _, times in faults.values() if what == "kill")
        assert got.incidents["worker_restarts"] == deaths


def test_two_workers_with_the_same_seed_give_the_same_episode(workers):
    pool = workers(partial(make_env, "household"), 2)
    played = []
    for environment in (pool(), pool(), make_env("household")):
        outcomes = [environment.reset(seed=5, options={"split": "train"})]
        outcomes += [environment.step(action) for action in ("look", "go to fridge 1", "no such thing")]
        played.append((environment.system_prompt, outcomes))
    assert played[0] == played[1] == played[2]


def test_a_worker_that_dies_idle_blames_nobody_and_its_episodes_go_on(workers, caplog):
    pool, alone = workers(Rooms, 1), Rooms()
    both = [pool(), pool()]
    want = [alone.reset(seed=4), alone.step("open it"), alone.step("go")]
    assert [each.reset(seed=4) for each in both] == [want[0]] * 2
    assert both[0].step("open it") == want[1]
    process = both[0].worker._process.pid
    os.kill(process, signal.SIGKILL)
    assert gone(process)
    assert [both[1].step("open it"), both[1].step("go")] == want[1:]
    assert both[0].step("go") == want[2]
    assert caplog.messages == ["no episode is to blame: an environment's worker was ended by SIGKILL"]
    assert pool.take_counts() == {"worker_restarts": 1}


def test_an_environment_that_does_not_repeat_itself_fails(workers):
    pool = workers(Odd, 1)
    forgetful, other = pool(), pool()
    for each in (forgetful, other):
        each.reset(seed=1)
    forgetful.step("forget")
    process = int(other.step("pid")[0])
    os.kill(process, signal.SIGKILL)
    assert gone(process)
    with pytest.raises(WorkerError, match="repeated for a new worker, step had another outcome"):
        forgetful.step("live")
    forgetful.reset(seed=1)
    assert forgetful.step("live")[0]


def test_answers_that_do_not_travel_fail_their_environment_alone(workers):
    pool = workers(Odd, 1)
    for action, why in (("unreadable", "cannot be read: OSError"), ("unsendable", "pickle|local object")):
        bad, good = pool(), pool()
        bad.reset(seed=1), good.reset(seed=1)
        bad.step_async(action), good.step_async("live")
        with pytest.raises(WorkerError, match=why):
            bad.step(action)
        assert good.step("live")[0]
    assert not pool.take_counts()


def test_what_is_read_of_an_environment_beside_its_answers_is_told(workers):
    environment = workers(Odd, 1)()
    environment.reset(seed=1)
    assert (environment.system_prompt, environment.stop_strings) == ("put a pen in .", ("open", "it"))


def test_closed_environments_are_closed_and_not_kept(workers, tmp_path):
    pool = workers(partial(Odd, tmp_path), 1)
    for _ in range(30):
        environment = pool()
        environment.reset(seed=1)
        environment.close()
    environment = pool()
    environment.reset(seed=1)
    assert int(environment.step("live")[0]) == 1
    assert len(list(tmp_path.glob("closed-*"))) > 0


def test_sigterm_and_ctrl_c_do_not_end_a_worker(workers):
    pool = workers(Odd, 1)
    environment = pool()
    environment.reset(seed=1)
    pid = environment.step("pid")[0]
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(int(pid), number)
    assert environment.step("pid")[0] == pid and not pool.take_counts()


@pytest.mark.parametrize("name", ["household", "alfworld", "webshop", "search"])
def test_a_worker_imports_no_torch(name):
    program = f"import sys; import sprout.seed.worker_process, sprout.seed.envs.{name}; print(*sys.modules)"
    python = [sys.executable, "-c", program]
    modules = subprocess.run(python, capture_output=True, text=True, check=True).stdout
    assert not {"torch", "pydantic", "transformers"} & set(modules.split())


@pytest.mark.parametrize("how", ["normal", "error", "ctrl-c", "kill"])
def test_no_process_is_left_behind(how):
    program = PROGRAM.format(folder=str(Path(__file__).parent), how=how)
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    left = parent.stdout.readline().split()
    assert len(left) == 2 and not any(gone(pid, 0.01) for pid in left)
    if how in ("ctrl-c", "kill"):
        os.killpg(parent.pid, signal.SIGINT if how == "ctrl-c" else signal.SIGKILL)
    parent.communicate(timeout=20)
    assert all(gone(pid) for pid in left)


def test_workers_end_with_what_holds_them():
    pool = Workers(Odd, 1, UNTIMED, UNTIMED)
    environment = pool()
    environment.reset(seed=1)
    pid = environment.step("pid")[0]
    del pool
    assert gone(pid)


def test_a_recipe_learns_the_same_with_workers(tiny, tmp_path):
    copy = before_training(tiny, tmp_path)
    config = load_config("tiny", [f"run.dir={tmp_path}", "run.resume=true", "env.workers=2"])
    perform(start(config, Console(quiet=True)), "train")
    assert_same_training(copy, tiny.folder)
    assert list(differing_keys(tiny.config, config)) == []
