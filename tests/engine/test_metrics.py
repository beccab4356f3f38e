"""Metrics file, TensorBoard, timers and what a run prints."""

import io
import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from sprout.engine import parallel
from sprout.engine.metrics import MetricsLogger, Timings, read_metrics
from sprout.engine.progress import UpdateTable, progress


def lines(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def logged(run_dir, steps, **options):
    logger = MetricsLogger(run_dir, tensorboard=False, **options)
    for step in steps:
        logger.log(step, {"actor/lr": step / 10})
    logger.close()


def test_one_line_per_update_with_plain_values(tmp_path):
    logger = MetricsLogger(tmp_path, tensorboard=False)
    logger.log(0, {"a": 1, "b": np.float32(0.5), "c": torch.tensor(2.0), "d": "x", "e": True})
    assert lines(tmp_path) == [{"step": 0, "a": 1, "b": 0.5, "c": 2.0, "d": "x", "e": True}]


def test_non_finite_values_are_shown_and_named(tmp_path):
    logger = MetricsLogger(tmp_path, tensorboard=False)
    logger.log(3, {"loss": math.nan, "grad_norm": math.inf, "kl": -math.inf, "lr": 0.1})
    expected = {"loss": "nan", "grad_norm": "inf", "kl": "-inf"}
    record = {"step": 3, "loss": None, "grad_norm": None, "kl": None, "lr": 0.1, "non_finite": expected}
    assert lines(tmp_path) == [record]


def test_floats_survive_exactly(tmp_path):
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": 1 / 3}
    MetricsLogger(tmp_path, tensorboard=False).log(0, values)
    logged(tmp_path, [], resume_from=1)
    assert lines(tmp_path) == [{"step": 0, **values}]


@pytest.mark.parametrize("value", [[1.0], {"x": 1}, torch.zeros(2), None])
def test_other_values_are_refused_by_name(tmp_path, value):
    with pytest.raises(ValueError, match="metric actor/x is a"):
        MetricsLogger(tmp_path, tensorboard=False).log(0, {"actor/x": value})


def test_reserved_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="reserved"):
        MetricsLogger(tmp_path, tensorboard=False).log(0, {"step": 1})


def test_resume_drops_the_updates_to_be_repeated(tmp_path):
    logged(tmp_path, range(5))
    logged(tmp_path, [3, 4, 5], resume_from=3)
    assert [record["step"] for record in lines(tmp_path)] == [0, 1, 2, 3, 4, 5]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_new_run_does_not_append_to_an_old_one(tmp_path):
    logged(tmp_path, [0])
    with pytest.raises(FileExistsError, match="resume the run or choose another run name"):
        logged(tmp_path, [0])
    logged(tmp_path, [0], resume_from=0)
    assert len(lines(tmp_path)) == 1


@pytest.mark.parametrize("keep", [1, 5, -2])
def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path, keep):
    logged(tmp_path, range(3))
    file = tmp_path / "metrics.jsonl"
    head, last = file.read_bytes()[:-1].rsplit(b"\n", 1)
    file.write_bytes(head + b"\n" + last[:keep])
    with pytest.warns(UserWarning, match="dropped line 3"):
        logged(tmp_path, [2], resume_from=2)
    assert [record["step"] for record in lines(tmp_path)] == [0, 1, 2]


def test_a_last_line_without_its_newline_is_kept_whole(tmp_path):
    logged(tmp_path, range(2))
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-1])
    logged(tmp_path, [2], resume_from=2)
    assert [record["step"] for record in lines(tmp_path)] == [0, 1, 2]


def test_a_bad_line_in_the_middle_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 0}\nrubbish\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2 is not a metrics object"):
        read_metrics(file)
    with pytest.raises(ValueError, match="line 2"):
        MetricsLogger(tmp_path, resume_from=2, tensorboard=False)
    assert len(file.read_text().splitlines()) == 3


def test_a_crash_while_truncating_leaves_the_old_file(tmp_path, monkeypatch):
    logged(tmp_path, range(3))
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def crash(*_):
        raise OSError("power cut")

    monkeypatch.setattr("pathlib.Path.replace", crash)
    with pytest.raises(OSError, match="power cut"):
        logged(tmp_path, [], resume_from=1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "is_main", lambda: False)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True)
    logged(tmp_path / "run", [0])
    UpdateTable({"lr": "actor/lr"}, console=console).row(0, {"actor/lr": 0.1})
    with progress("rollout", 3, console=console) as advance:
        advance()
    assert not (tmp_path / "run").exists()
    assert out.getvalue() == ""


def test_tensorboard_purges_what_is_repeated(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resume_from, steps in ((None, range(4)), (2, range(2, 5))):
        logger = MetricsLogger(tmp_path, resume_from=resume_from)
        for step in steps:
            logger.log(step, {"actor/lr": step + 10.0 * (resume_from or 0), "note": "text"})
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("actor/lr")] == [
        (0, 0),
        (1, 1),
        (2, 22),
        (3, 23),
        (4, 24),
    ]


def test_timings_add_up_and_start_over():
    timings = Timings()
    for _ in range(2):
        with timings("step"), timings("rollout"):
            pass
    with pytest.raises(KeyError), timings("update"):
        raise KeyError
    collected = timings.collect()
    assert set(collected) == {"timing_s/step", "timing_s/rollout", "timing_s/update"}
    assert collected["timing_s/step"] >= collected["timing_s/rollout"] >= 0
    assert timings.collect() == {}


def test_table_rows_in_a_log_are_lines_of_heading_and_value():
    out = io.StringIO()
    table = UpdateTable(
        {"success": "episode/success_rate", "gate": "seed/gate_mean"}, console=Console(file=out)
    )
    table.row(7, {"episode/success_rate": 0.4375})
    assert out.getvalue() == "update=7 success=0.4375 gate=-\n"


def test_table_repeats_its_heading_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=40)
    table = UpdateTable({"success": "s"}, console=console)
    for step in range(21):
        table.row(step, {"s": 1.0})
    rows = out.getvalue().splitlines()
    assert len(rows) == 23
    assert rows[0].split() == rows[21].split() == ["update", "success"]
    assert rows[1].split() == ["0", "1"]


def test_progress_in_a_log_writes_plain_lines_now_and_then():
    out = io.StringIO()
    with progress("rollout", 3, console=Console(file=out), seconds_between_lines=0) as advance:
        advance()
        advance(2)
    assert out.getvalue() == "rollout: 1/3 after 0 s\nrollout: 3/3 after 0 s\n"
    out = io.StringIO()
    with progress("rollout", None, console=Console(file=out)) as advance:
        advance()
    assert out.getvalue() == ""


def test_progress_on_a_terminal_draws_a_bar():
    out = io.StringIO()
    with progress("rollout", 3, console=Console(file=out, force_terminal=True, width=80)) as advance:
        advance(3)
    assert "rollout" in out.getvalue()
    assert "3/3" in out.getvalue()
