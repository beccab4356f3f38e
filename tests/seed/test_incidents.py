"""Environments that die or hang outside of training: whatever asks goes on, and all is counted."""

from functools import partial

import orjson
import pytest
from faulty_environments import FaultyHousehold, broken, never
from rich.console import Console
from test_stages import beside, changed

from sprout.engine.metrics import read_metrics
from sprout.seed import incidents
from sprout.seed.episode import Task
from sprout.seed.knowledge import Knowledge, Question
from sprout.seed.player import Player
from sprout.seed.policy import load_policy
from sprout.seed.rollout import training_tasks
from sprout.seed.run import perform
from sprout.seed.stages.collect import STAGE_1
from sprout.seed.stages.report import evaluate_model
from sprout.seed.summary import summarize
from sprout.seed.trajectory import Skill
from sprout.seed.workers import Workers

HANGS_S = 12.0  # a worker imports what it needs within it, on a busy machine too
UNTIMED = 120.0


@pytest.fixture
def faulty(monkeypatch, tmp_path):
    """Lets every Player of the test play household with these faults, in two workers."""
    made = []

    def strike(faults, max_turns=6):
        folder = tmp_path / f"struck-{len(made)}"
        folder.mkdir()
        make = partial(FaultyHousehold, folder, faults, max_turns=max_turns)

        def workers(env):
            limit = HANGS_S if "hang" in dict(faults.values()) else UNTIMED
            made.append(Workers(make, 2, limit, limit))
            return made[-1]

        monkeypatch.setattr("sprout.seed.player.environment_factory", workers)

    yield strike
    for each in made:
        each.close()


def happened(**counts):
    return incidents.counted(counts)


def test_stage_1_goes_on_and_counts(tiny, tmp_path, faulty):
    run = beside(tiny, tmp_path / "run")
    tasks = training_tasks(run.config.run.seed, STAGE_1, run.config.collect.tasks)
    faulty({tasks[1].group: ("hang", 1), tasks[2].group: ("kill", 99)})
    result = perform(run, "collect")
    members = run.config.collect.rollouts_per_task
    assert result["trajectories"] == members * (len(tasks) - 1)
    counts = result[incidents.KEY]
    assert (counts["timeouts"], counts["dropped_groups"]) == (1, 1)
    assert counts["retries"] >= 2 and counts["worker_restarts"] >= 3
    assert summarize(run)[incidents.KEY] == counts


def test_a_hanging_reset_does_not_hang_an_evaluation(tiny, tmp_path, faulty):
    run = beside(tiny, tmp_path / "run", eval__report_tasks=3)
    faulty({"report-1": ("hang", 1)})
    model = str(tiny.folder.stage1_model)
    record = orjson.loads(evaluate_model(run.config, model, "report"))
    assert record["tasks"] == 3
    assert record[incidents.KEY] == happened(retries=1, timeouts=1, worker_restarts=1)
    faulty({})
    healthy = orjson.loads(evaluate_model(run.config, model, "report"))
    assert healthy.pop(incidents.KEY) == happened()
    assert healthy.items() <= record.items()


def test_nor_does_one_that_is_asked_for_its_skill(tiny, faulty):
    faulty({"report-0": ("hang", 1), "report-2": ("raise", 99)})
    config = changed(tiny.config, eval__report_tasks=3)
    player = Player(load_policy(tiny.folder.stage1_model, config), config, Console(quiet=True))
    found = player.evaluate("report", 3, "oracle")
    assert [t.seed for t in found.trajectories] == [0, 1] == list(found.skills)
    assert found.record()[incidents.KEY] == happened(retries=2, unanswered=1, timeouts=1, worker_restarts=1)
    own = player.evaluate("report", 3, "own")  # a task without a plain episode has no skill to be shown
    assert [t.seed for t in own.trajectories] == [0, 1]
    assert own.record()[incidents.KEY] == happened(retries=1, dropped_groups=1)


def test_evaluations_during_training_are_counted_apart(tiny, tmp_path, faulty):
    run = beside(tiny, tmp_path / "run", train__updates=1, eval__select_tasks=2, eval__every=1)
    faulty({"select-0": ("kill", 1), training_tasks(0, 1, 1)[0].group: ("kill", 1)})
    result = perform(run, "train")
    [line] = read_metrics(run.folder.root / "metrics.jsonl")
    assert line["rollout/worker_restarts"] == line["rollout/retries"] == 1
    assert line["val/worker_restarts"] == line["val/retries"] == 0  # after update 1; the one before had it
    first = orjson.loads(run.folder.evaluation(0).read_bytes())
    assert first["student"][incidents.KEY] == happened(retries=1, worker_restarts=1)
    assert result[incidents.KEY] == happened(retries=2, worker_restarts=2)


def test_questions_are_answered_as_without_workers(tmp_path):
    make = partial(FaultyHousehold, tmp_path, {"train-3": ("kill", 1), "train-4": ("raise", 99)})
    pool = Workers(make, 1, UNTIMED, UNTIMED)
    tasks = [Task("train", seed) for seed in range(5)]
    questions = [Question(task, method) for task in tasks for method in ("", "oracle_skill")]
    questions.append(Question(tasks[0], "skill_is_right", ("go to nowhere 1",)))
    knowledge = Knowledge(pool)
    asked = knowledge.answers(questions)
    alone = Knowledge(partial(FaultyHousehold, tmp_path, {})).answers(questions)
    assert asked[:8] == alone[:8] and asked[8:10] == [None, None] and asked[10] is alone[10] is False
    assert knowledge.take_counts() == {"retries": 3, "unanswered": 2}
    assert not knowledge.take_counts() and pool.take_counts() == {"worker_restarts": 1}
    pool.close()


def test_skills_that_cannot_be_checked_are_left_out(tiny, faulty):
    player = Player(load_policy(tiny.folder.stage1_model, tiny.config), tiny.config, Console(quiet=True))
    played = player.evaluate("select", 3, "oracle")
    skills = [played.skills[t.seed] for t in played.trajectories]
    faulty({"select-1": ("raise", 99)})
    struck = Player(player.policy, tiny.config, Console(quiet=True))
    assert struck.skills_right(played.trajectories, skills) == 1.0
    assert incidents.counted(struck.take_incidents()) == happened(retries=1, unanswered=1)
    invalid = [Skill(valid=False, analyzer="test"), *skills[1:]]
    assert struck.skills_right(played.trajectories, invalid) == 0.5


@pytest.mark.parametrize(
    ("make", "limit", "why"),
    [
        (broken, UNTIMED, "FileNotFoundError: no games in /data"),
        (never, 2.0, r"no answer to open in 2 s \(env.reset_timeout_s\)"),
    ],
)
def test_an_environment_that_cannot_be_made_is_said_at_once(make, limit, why):
    pool = Workers(make, 1, limit, limit)
    with pytest.raises(ValueError, match=f"the environment cannot be made: {why}"):
        Knowledge(pool)
    pool.close()


def test_incidents_are_added_up_and_put_in_words():
    inner = {"incidents": {"timeouts": 2}}
    assert incidents.total({"a": inner, "b": {"c": inner, "incidents": {"retries": 1}}}) == happened(
        timeouts=4, retries=1
    )
    assert incidents.describe({"worker_restarts": 2, "timeouts": 0}) == "2 worker restarts"
    assert incidents.of_metrics("val", incidents.metrics("val", {"retries": 3})) == happened(retries=3)
