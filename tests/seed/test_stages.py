"""What the stages of a finished run leave on disk, and what they do when something is not as it should be."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
import torch
from rich.console import Console
from settings import changed

from sprout.engine import checkpoint
from sprout.engine.metrics import read_metrics
from sprout.engine.update import TurnScores
from sprout.seed.config import load_config, with_method
from sprout.seed.objectives import UpdateTurns
from sprout.seed.policy import load_policy
from sprout.seed.rollout import panel, training_tasks
from sprout.seed.run import Run, perform, start
from sprout.seed.run_dir import RunDir, claim, differing_keys, read_json
from sprout.seed.stages.alarms import Alarms
from sprout.seed.stages.collect import stored
from sprout.seed.stages.compare import method_config
from sprout.seed.stages.sft import Batches
from sprout.seed.stages.train import Training, speed
from sprout.seed.stages.update import delta_metrics
from sprout.seed.summary import summarize
from sprout.seed.trajectory import read_trajectories

NAMES = """
    actor/pg_loss actor/kl_loss actor/entropy actor/pg_clipfrac actor/ppo_kl actor/grad_norm actor/lr
    response_length/clip_ratio episode/success_rate episode/valid_action_ratio
    seed/opd_loss seed/gate_mean seed/gate_active_ratio seed/delta_mean seed/delta_p05 seed/delta_p95
    seed/delta_failure seed/skill_valid_rate seed/skill_tokens seed/skill_repeat_rate seed/skill_grounding
    seed/skill_right_rate seed/forest_reuse_ratio seed/pair_tokens_per_s
    timing_s/rollout timing_s/analyze timing_s/rescore timing_s/update timing_s/step
    perf/total_num_tokens perf/throughput
    training/rollout_probs_diff_mean training/rollout_probs_diff_max
"""
SPREADS = """
    critic/score critic/rewards critic/advantages response_length prompt_length episode/reward episode/length
"""


def expected_names():
    spreads = {f"{name}/{kind}" for name in SPREADS.split() for kind in ("mean", "max", "min")}
    return spreads | set(NAMES.split())


def quiet(config, folder, origin):
    return Run(config, folder, origin, Console(quiet=True))


def beside(tiny, folder, **fields):
    """A new run with other settings that starts from the Stage 1 of the tiny run."""
    folder = RunDir(folder)
    config = changed(tiny.config, **fields)
    claim(folder, config)
    return quiet(config, folder, tiny.folder)


def test_every_stage_is_marked_with_its_result_and_time(tiny):
    for stage in tiny.config.run.stages:
        assert tiny.folder.result(stage)["wall_s"] > 0


def test_config_file_reads_back_and_names_versions_and_revision(tiny):
    text = tiny.folder.config_file.read_text()
    assert load_config(tiny.folder.config_file) == tiny.config
    for name in ("sprout", "git", "torch", "machine", "cpu"):
        assert f"\n# {name}: " in f"\n{text}"


def test_collected_trajectories_are_the_tasks_of_the_run_seed(tiny):
    trajectories = list(stored(tiny.folder.collected))
    assert {t.seed for t in trajectories} == {task.seed for task in training_tasks(0, 0, 4)}
    assert len(trajectories) == 8 and all(t.skill is None for t in trajectories)


def test_annotated_trajectories_are_the_collected_ones_with_skills(tiny):
    pairs = zip(stored(tiny.folder.collected), stored(tiny.folder.annotated), strict=True)
    for plain, annotated in pairs:
        assert annotated.skill.valid and annotated.skill.analyzer == "scripted"
        assert annotated.model_copy(update={"skill": None}) == plain


def test_metrics_have_the_names_users_expect(tiny):
    lines = read_metrics(tiny.folder.root / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line.keys() >= expected_names()
        families = {t.family for t in read_trajectories(tiny.folder.trajectories(line["step"]))}
        assert line.keys() >= {f"episode/{family}_success_rate" for family in families}
    assert ["val/success_rate" in line for line in lines] == [False, True, False, True]
    assert "timing_s/checkpoint" in lines[2] and "timing_s/eval" in lines[3]


def test_trajectories_of_an_update_hold_the_exact_teacher_text(tiny):
    for update in (1, 4):
        trajectories = list(read_trajectories(tiny.folder.trajectories(update)))
        assert [t.update for t in trajectories] == [update] * 4
        assert {t.seed for t in trajectories} == {task.seed for task in training_tasks(0, update, 2)}
        assert all(t.teacher_skill == t.skill.text and t.skill_donor == t.id for t in trajectories)


def test_scores_of_the_first_and_last_update_are_kept_and_are_what_the_metrics_average(tiny):
    assert sorted(file.stem for file in (tiny.folder.root / "scores").iterdir()) == ["000001", "000004"]
    metrics = {line["step"]: line for line in read_metrics(tiny.folder.root / "metrics.jsonl")}
    for update in (1, 4):
        played = {t.id: t for t in read_trajectories(tiny.folder.trajectories(update))}
        scored = [orjson.loads(line) for line in tiny.folder.scores(update).read_bytes().splitlines()]
        assert len(scored) == sum(len(t.turns) for t in played.values())
        for turn in scored:
            record = played[turn["trajectory"]].turns[turn["turn"]]
            assert len(record.action) == len(turn["l_theta"]) == len(turn["gate"]) == len(turn["advantage"])
            assert np.allclose(turn["l_theta"], record.logprobs, atol=1e-4)
            assert np.allclose(np.subtract(turn["l_skill"], turn["l_theta"]), turn["delta"], atol=1e-5)
        deltas = np.concatenate([turn["delta"] for turn in scored])
        assert np.isclose(deltas.mean(), metrics[update]["seed/delta_mean"], atol=1e-5)


def test_evaluations_are_of_the_fixed_select_panel(tiny):
    for updates in (0, 2, 4):
        record = read_json(tiny.folder.evaluation(updates))
        assert record["updates"] == updates
        assert record["student"]["split"] == "select" and record["student"]["tasks"] == 6
        low, high = record["student"]["ci95"]
        assert low <= record["student"]["success_rate"] <= high


def test_checkpoints_keep_the_last_ones_and_load(tiny):
    names = sorted(folder.name for folder in tiny.folder.checkpoints.glob("step-*"))
    assert names == ["step-000002", "step-000004"]
    assert load_policy(tiny.folder.checkpoints / names[-1] / "model", tiny.config).chat.stop_id


def test_summary_has_what_the_run_was_for(tiny):
    summary = orjson.loads(tiny.folder.summary_file.read_bytes())
    assert summary["updates"] == 4 and summary["report_tasks"] == 8
    for name in ("base", "base_oracle_skill", "base_own_skill", "sft", "final"):
        assert 0 <= summary[f"success_{name}"] <= 1
    assert len(summary["ci95_final"]) == 2 and summary["macro_success_final"] >= 0
    assert [point["updates"] for point in summary["curve"]] == [0, 2, 4]
    assert summary["wall_s"] >= summary["training_s"] > 0


def test_panels_are_fixed_and_apart(tiny):
    assert panel("report", 3) == panel("report", 4)[:3]
    assert {task.split for task in panel("report", 3)} == {"report"}


def test_evaluation_repeats_itself_and_skills_are_checked(player):
    first, again = (player.evaluate("select", 4, shown) for shown in ("oracle", "oracle"))
    assert first.record() == again.record()
    skills = [first.skills[t.seed] for t in first.trajectories]
    assert player.skills_right(first.trajectories, skills) == 1.0
    assert player.skills_right(first.trajectories, skills[1:] + skills[:1]) < 1.0
    assert player.skills_right([], []) is None


def test_own_skills_are_written_about_an_episode_of_the_same_task(player):
    plain = player.evaluate("select", 3)
    own = player.evaluate("select", 3, "own", plain)
    assert [t.seed for t in own.trajectories] == list(own.skills)
    assert {skill.analyzer for skill in own.skills.values()} == {"scripted"}
    context = own.trajectories[0].contexts()[0].tolist()
    assert player.policy.chat.decode(context).count("hint") == 1


def test_skill_grpo_trains_on_prompts_with_a_skill_and_is_measured_without(tiny, tmp_path):
    (tmp_path / "skills.yaml").write_text("default: search other places first .\n")
    skills = {"analyzer__static_path": str(tmp_path / "skills.yaml")}
    config = method_config(
        changed(tiny.config, train__updates=1, eval__select_tasks=2, **skills), "skill-grpo"
    )
    folder = RunDir(tmp_path / "run")
    claim(folder, config)
    run = quiet(config, folder, tiny.folder)
    perform(run, "train")
    chat = load_policy(run.start_model(), config).chat
    for trajectory in read_trajectories(folder.trajectories(1)):
        for turn, context in zip(trajectory.turns, trajectory.contexts(), strict=True):
            assert turn.prompt_skill == "search other places first ."
            assert chat.decode(context.tolist()).count("hint : search other places first .") == 1
    assert read_metrics(folder.root / "metrics.jsonl")[0]["actor/grad_norm"] >= 0
    assert read_json(folder.evaluation(1))["student"]["skill"] == "none"


@pytest.mark.parametrize(
    "method", ["grpo", "null-skill", "shuffled-skill", "beta0", "opid", "rlsd", "skill-sd"]
)
def test_methods_train_from_the_same_stage_1(tiny, tmp_path, method):
    config = method_config(changed(tiny.config, train__updates=1, eval__select_tasks=0), method)
    folder = RunDir(tmp_path)
    claim(folder, config)
    run = quiet(config, folder, tiny.folder)
    perform(run, "train")
    metrics = read_metrics(folder.root / "metrics.jsonl")[0]
    teacher = {t.teacher_skill for t in read_trajectories(folder.trajectories(1))}
    if method == "grpo":
        assert teacher == {None} and "seed/delta_mean" not in metrics
    elif method == "null-skill":
        assert teacher == {""}
        assert metrics["seed/delta_mean"] == 0.0 and metrics["seed/gate_mean"] == 0.5
    else:
        assert teacher != {None} and metrics["seed/delta_mean"] != 0.0
        assert (metrics["seed/gate_mean"] == 0.5) is (method == "beta0")


def test_comparison_is_stored_in_folders_of_its_own_and_summarized(tiny, tmp_path):
    run = beside(tiny, tmp_path, train__updates=1, eval__select_tasks=0)
    run = replace(run, config=run.config.model_copy(update={"compare": ("grpo", "grpo-wallclock")}))
    for stage in ("train", "eval", "compare"):
        perform(run, stage)
    rows = summarize(run)["comparisons"]
    assert [row["method"] for row in rows] == ["seed", "grpo", "grpo-wallclock"]
    assert rows[1]["updates"] == 1 and rows[2]["updates"] >= 1
    assert rows[2]["training_s"] >= rows[0]["training_s"]
    grpo = RunDir(tmp_path).compared("grpo")
    assert list(differing_keys(load_config(grpo.config_file), with_method(run.config, "grpo"))) == ["compare"]
    assert summarize(quiet(run.config, grpo, tiny.folder))["success_final"] == rows[1]["success"]


def test_resuming_from_a_named_checkpoint_supersedes_later_ones(tiny, tmp_path):
    run = beside(tiny, tmp_path, train__updates=2, train__checkpoint_every=1, eval__select_tasks=0)
    perform(run, "train")
    back = quiet(changed(run.config, run__resume="step-000001"), run.folder, tiny.folder)
    assert Training(back).counters.updates == 1
    names = sorted(folder.name for folder in run.folder.checkpoints.glob("*step-*"))
    assert names == ["step-000001", "superseded-step-000002"]
    assert not run.folder.trajectories(2).exists() and run.folder.trajectories(1).exists()


def test_more_updates_go_on_where_the_run_ended(tiny, tmp_path):
    run = beside(tiny, tmp_path, train__updates=1, eval__select_tasks=0)
    perform(run, "train")
    config = changed(run.config, train__updates=2, run__resume=True)
    assert claim(run.folder, config) == ["train.updates"]
    assert Training(quiet(config, run.folder, tiny.folder)).train()["updates"] == 2
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def test_wall_clock_limit_stops_cleanly_with_a_checkpoint(tiny, tmp_path):
    run = beside(tiny, tmp_path, train__updates=100, train__max_wall_s=0.01, eval__select_tasks=2)
    training = Training(run)
    training.ended_by = ""
    result = training.train()
    assert result["updates"] == 1 and result["ended_by"] == "train.max_wall_s"
    assert checkpoint.latest(run.folder.checkpoints).name == "step-000001"
    assert run.folder.evaluation(1).is_file()


def test_non_finite_updates_are_skipped_named_and_stop_the_run_after_three(tiny, tmp_path):
    run = beside(tiny, tmp_path, train__updates=9, train__checkpoint_every=1, eval__select_tasks=0)
    training = Training(run)
    weight = training.policy.decoder.model.layers[0].mlp.up_proj.weight
    before = weight.detach().clone()
    weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(FloatingPointError, match=r"3 updates in a row.*mlp\.up_proj\.weight"):
        training.train()
    assert torch.equal(weight, before)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["actor/skipped_steps"] for line in lines] == [1.0] * 3
    assert all("mlp.up_proj.weight" in line["actor/non_finite"] for line in lines)
    listed = read_json(tmp_path / "non_finite" / "000003.json")
    turns = sum(len(t.turns) for t in read_trajectories(listed["trajectories"]))
    assert len(listed["turns"]) == turns


def test_alarms_are_given_once_per_kind_and_survive_a_checkpoint():
    healthy = {"actor/entropy": 1.0, "episode/valid_action_ratio": 0.9}
    sick = {
        "actor/entropy": 0.05,
        "episode/valid_action_ratio": 0.5,
        "seed/skill_valid_rate": 0.1,
        "val/teacher_minus_student": -0.2,
    }
    alarms = Alarms()
    assert alarms.check(healthy) == []
    assert len(alarms.check(sick)) == 4
    assert Alarms(**alarms.state()).check(sick) == []
    assert alarms.check({**healthy, "val/teacher_minus_student": -0.01}) == []


def test_rates_leave_evaluation_out_and_need_a_known_peak_for_mfu():
    metrics = {"perf/total_num_tokens": 600.0, "perf/flops": 8e12}
    timings = {"timing_s/step": 5.0, "timing_s/eval": 2.0, "timing_s/update": 1.0}
    rates = speed(metrics, timings, peak=16e12)
    assert (rates["perf/throughput"], rates["seed/pair_tokens_per_s"]) == (200.0, 600.0)
    assert rates["perf/mfu/actor"] == 0.5
    assert "perf/mfu/actor" not in speed(metrics, timings, peak=None)


def test_delta_is_told_apart_by_outcome_and_place_in_the_response():
    values = [np.array([1.0, 2.0, 3.0, 6.0], np.float32), np.array([-1.0, -3.0], np.float32)]
    scores = [TurnScores(v, v, v, v, delta=v, gate=np.abs(v)) for v in values]
    scores.append(TurnScores(values[0], values[0], values[0]))
    turns = UpdateTurns(owners=[(0, 0), (1, 0), (1, 1)])
    metrics = delta_metrics(scores, turns, [SimpleNamespace(success=True), SimpleNamespace(success=False)])
    assert metrics["seed/delta_success"] == 3.0 and metrics["seed/delta_failure"] == -2.0
    assert metrics["seed/gate_success"] == 3.0 and metrics["seed/gate_failure"] == 2.0
    assert metrics["seed/delta_first_token"] == 0.0 and metrics["seed/delta_inner_tokens"] == 2.5
    assert metrics["seed/delta_last_token"] == 1.5


def test_a_bad_trajectory_line_names_file_and_line(tiny, tmp_path):
    run = beside(tiny, tmp_path)
    run.folder.collected.mkdir(parents=True)
    (run.folder.collected / "000000.jsonl").write_text('{"schema_version": 1\n')
    with pytest.raises(ValueError, match=r"000000.jsonl:1: not a JSON line"):
        perform(run, "annotate")
    with pytest.raises(FileNotFoundError, match="holds no trajectories"):
        list(stored(run.folder.annotated))


def test_a_damaged_checkpoint_is_one_line_and_names_the_way_out(tiny, tmp_path):
    run = beside(tiny, tmp_path, train__updates=2, train__checkpoint_every=1, eval__select_tasks=0)
    perform(run, "train")
    weights = run.folder.checkpoints / "step-000002" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model.safetensors has .* resume from step-000001"):
        Training(quiet(changed(run.config, run__resume=True), run.folder, tiny.folder))


def test_contexts_beyond_the_models_positions_are_refused(tiny):
    longer = changed(tiny.config, rollout__max_context_tokens=4096, rollout__cache_tokens=8192)
    with pytest.raises(ValueError, match=r"rollout.max_context_tokens: 4096 exceeds the 2048 positions"):
        load_policy(tiny.folder.stage1_model, longer)


def test_a_stage_that_needs_what_the_environment_lacks_says_so(tiny, player, monkeypatch):
    bare = replace(player.policy)
    unlike = changed(tiny.config, sft__replay_fraction=0.5, env__name="alfworld", env__max_turns=None)
    monkeypatch.setattr("sprout.seed.stages.sft.make_env", lambda name, **options: object())
    with pytest.raises(ValueError, match="'alfworld' has no lessons"):
        Batches([None] * 4, bare, unlike)


def test_start_reopens_stage_2_when_a_resumed_run_changes(tiny, tmp_path):
    config = load_config("tiny", [f"run.dir={tmp_path}", "run.stages=[train]"])
    run = start(config, Console(quiet=True))
    run.folder.finish("collect", {"wall_s": 1.0})
    run.folder.finish("train", {"wall_s": 1.0})
    again = start(changed(config, run__resume=True), Console(quiet=True))
    assert again.folder.result("train") is not None
    again = start(changed(config, run__resume=True, train__lr=0.5), Console(quiet=True))
    assert again.folder.result("train") is None and again.folder.result("collect") is not None


def test_methods_to_compare_can_be_added_to_a_finished_run(tmp_path):
    config = load_config("tiny", [f"run.dir={tmp_path}"])
    run = start(config, Console(quiet=True))
    for stage in ("train", "compare"):
        run.folder.finish(stage, {"wall_s": 1.0})
    more = config.model_copy(update={"compare": ("grpo",)})
    again = start(changed(more, run__resume=True), Console(quiet=True))
    assert again.folder.result("train") is not None and again.folder.result("compare") is None
