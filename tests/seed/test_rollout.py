"""Rollouts: exact records, order and batch independence, failing environments, skills in the prompt."""

import gymnasium
import numpy as np
import pytest
import torch

from sprout.engine.forest import Forest, Turn
from sprout.engine.generator import Generator
from sprout.kernels import selected_logprob
from sprout.seed.config import load_config
from sprout.seed.conversation import Conversation
from sprout.seed.episode import Task
from sprout.seed.objectives import turns_for_update
from sprout.seed.rollout import Rollouts, Sampling, panel, training_tasks
from sprout.seed.statistics import episode_metrics, success_rate, wilson_interval

SETTINGS = ["rollout.max_response_tokens=6", "rollout.max_context_tokens=400", "rollout.cache_tokens=4000"]
TASKS = [Task("train", seed) for seed in (3, 8, 4)]


class Rooms(gymnasium.Env):
    """Ends after 2 to 4 turns; what it says depends on everything said before."""

    system_prompt = "put it in ."
    made = 0
    fail_at: dict = {}  # noqa: RUF012  (task, attempt of any member) -> turn at which step raises
    attempts: dict = {}  # noqa: RUF012

    def __init__(self):
        type(self).made += 1
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task, self.turn, self.said = seed, 0, 0
        self.attempts[seed] = self.attempts.get(seed, 0) + 1
        self.attempt = self.attempts[seed]
        return f"you see pen {seed % 3 + 1} .", {"task": "put a mug .", "family": ("put", "look")[seed % 2]}

    def step(self, action):
        if self.fail_at.get((self.task, self.attempt)) == self.turn:
            raise OSError("the socket is gone")
        self.turn += 1
        self.said += len(action)
        done = self.turn >= 2 + self.task % 3
        info = {"valid": len(action) % 2 == 0, "success": done and self.said % 2 == 0}
        return f"you see shelf {self.said % 3 + 1} .", float(info["success"]), done, False, info

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _no_failures():
    Rooms.fail_at, Rooms.attempts, Rooms.made = {}, {}, 0


@pytest.fixture(scope="module")
def decoder(word_chat, make_decoder):
    return make_decoder(max(word_chat.encode("end"), default=0) + 8)


def rollouts_of(decoder, chat, *overrides, make=Rooms):
    config = load_config(None, [*SETTINGS, *overrides])
    generator = Generator(decoder, stop_id=chat.stop_id, cache_tokens=config.rollout.cache_tokens)
    return Rollouts(generator, chat, make, config)


def dump(result):
    return [trajectory.model_dump() for trajectory in result.trajectories]


@pytest.mark.parametrize("history", ["append", "window"])
def test_records_are_what_the_policy_saw_and_said(decoder, word_chat, history):
    layout = (f"rollout.history_layout={history}", "rollout.history_turns=1")
    rollouts = rollouts_of(decoder, word_chat, *layout)
    result = rollouts.run(TASKS, 4, update=0)
    assert [t.id for t in result.trajectories] == [f"{k.group}/{m}" for k in TASKS for m in range(4)]
    for trajectory in result.trajectories:
        assert len(trajectory.turns) == 2 + trajectory.seed % 3
        conversation = Conversation.of(trajectory, word_chat, rollouts.config.rollout)
        for number, context in enumerate(trajectory.contexts()):
            assert np.array_equal(context, conversation.student(number))
        for turn in trajectory.turns:
            assert turn.response == word_chat.decode(turn.action)
            assert (turn.action[-1] == word_chat.stop_id) == (turn.finished == "stop")
            assert turn.admissible == (len(turn.response) % 2 == 0)
            assert turn.well_formed == (turn.admissible and turn.finished == "stop")
        assert trajectory.reward == float(trajectory.success)
        assert trajectory.final_observation.startswith("you see shelf")
    rollouts.generator.reset()


def test_sampled_logprobs_are_the_training_logprobs(decoder, word_chat):
    trajectory = rollouts_of(decoder, word_chat).run(TASKS[:1], 1, update=0).trajectories[0]
    for context, turn in zip(trajectory.contexts(), trajectory.turns, strict=True):
        forest = Forest.pack([Turn(context, np.asarray(turn.action))])
        with torch.no_grad():
            hidden, _ = decoder(forest)
            logprob, _ = selected_logprob(hidden, decoder.head_weight, forest.student_row, forest.target)
        np.testing.assert_allclose(logprob.numpy(), turn.logprobs, atol=1e-4)


def test_an_episode_does_not_depend_on_what_is_played_beside_it(decoder, word_chat):
    everything = rollouts_of(decoder, word_chat).run(TASKS, 3, update=5)
    one_by_one = rollouts_of(decoder, word_chat, "rollout.max_episodes=1").run(TASKS, 3, update=5)
    assert dump(everything) == dump(one_by_one)
    alone = rollouts_of(decoder, word_chat).run(TASKS[1:2], 3, update=5)
    assert dump(alone) == dump(everything)[3:6]
    small = rollouts_of(decoder, word_chat, "rollout.max_context_tokens=120", "rollout.cache_tokens=128")
    assert dump(small.run(TASKS, 3, update=5)) == dump(everything)
    other = rollouts_of(decoder, word_chat).run(TASKS, 3, update=6)
    assert [t["turns"] for t in dump(other)] != [t["turns"] for t in dump(everything)]


def test_members_differ_and_greedy_members_do_not(decoder, word_chat):
    rollouts = rollouts_of(decoder, word_chat)
    sampled = rollouts.run(TASKS[:1], 4, update=0).trajectories
    assert len({tuple(t.turns[0].action) for t in sampled}) > 1
    greedy = rollouts.run(TASKS[:1], 4, update=0, sampling=Sampling(0.0, 1.0)).trajectories
    assert all(t.turns == greedy[0].turns for t in greedy)


def test_a_failing_environment_is_retried_and_gives_the_same_episode(decoder, word_chat):
    want = rollouts_of(decoder, word_chat).run(TASKS, 1, update=0)
    Rooms.attempts, Rooms.fail_at = {}, {(8, 1): 1}
    got = rollouts_of(decoder, word_chat).run(TASKS, 1, update=0)
    assert dump(got) == dump(want)
    assert got.incidents["retries"] == 1 and got.incidents["dropped_groups"] == 0


def test_a_group_that_keeps_failing_is_dropped_whole_and_counted(decoder, word_chat, caplog):
    want = rollouts_of(decoder, word_chat).run(TASKS, 3, update=0)
    Rooms.attempts, Rooms.fail_at = {}, {(8, attempt): 1 for attempt in range(1, 9)}
    rollouts = rollouts_of(decoder, word_chat)
    got = rollouts.run(TASKS, 3, update=0)
    assert dump(got) == dump(want)[:3] + dump(want)[6:]
    assert got.incidents["dropped_groups"] == got.incidents["retries"] == 1
    assert "OSError: the socket is gone" in caplog.text
    rollouts.generator.reset()


def test_a_broken_environment_stops_the_run_with_its_own_words(decoder, word_chat):
    class Broken(Rooms):
        def reset(self, *, seed=None, options=None):
            raise FileNotFoundError("no games in /data")

    rollouts = rollouts_of(decoder, word_chat, make=Broken)
    with pytest.raises(RuntimeError, match=r"every group was dropped.*FileNotFoundError: no games"):
        rollouts.run(TASKS, 2, update=0)


def test_interruption_propagates_and_frees_everything(decoder, word_chat):
    made = []

    class Interrupted(Rooms):
        def __init__(self):
            super().__init__()
            made.append(self)

        def step(self, action):
            if self.turn == 1:
                raise KeyboardInterrupt
            return super().step(action)

    rollouts = rollouts_of(decoder, word_chat, make=Interrupted)
    with pytest.raises(KeyboardInterrupt):
        rollouts.run(TASKS, 2, update=0)
    rollouts.generator.reset()
    assert made and all(environment.closed for environment in made)


def test_environments_are_used_again(decoder, word_chat):
    rollouts_of(decoder, word_chat, "rollout.max_episodes=2").run(TASKS, 4, update=0)
    assert Rooms.made == 2


def test_a_context_that_outgrows_its_limit_is_an_error_or_ends_the_episode(decoder, word_chat):
    limit = "rollout.max_context_tokens=60"
    with pytest.raises(ValueError, match=r"task train-8, turn 2: a context of .*max_context_tokens"):
        rollouts_of(decoder, word_chat, limit).run(TASKS, 1, update=0)
    rollouts = rollouts_of(decoder, word_chat, limit, "rollout.context_overflow=end_episode")
    result = rollouts.run(TASKS, 1, update=0)
    cut = [t for t in result.trajectories if t.truncated]
    assert len(cut) == result.incidents["context_overflows"] > 0
    assert all(t.usable for t in cut)
    rollouts.generator.reset()


def test_max_turns_truncates(decoder, word_chat):
    result = rollouts_of(decoder, word_chat, "env.max_turns=1").run(TASKS, 1, update=0)
    assert [(len(t.turns), t.truncated) for t in result.trajectories] == [(1, True)] * 3


@pytest.mark.parametrize("placement", ["before_action", "after_task"])
def test_a_skill_in_the_prompt_is_in_that_turn_only(decoder, word_chat, placement):
    rollouts = rollouts_of(decoder, word_chat, f"rollout.skill_placement={placement}")
    asked = []

    def skill(trajectory):
        asked.append((trajectory.group, len(trajectory.turns)))
        return "open it ." if len(trajectory.turns) != 1 else ""

    result = rollouts.run(TASKS, 1, update=0, skill=skill)
    block = word_chat.encode("hint : open it .")
    for trajectory in result.trajectories:
        conversation = Conversation.of(trajectory, word_chat, rollouts.config.rollout)
        for number, context in enumerate(trajectory.contexts()):
            text = "open it ." if number != 1 else ""
            assert np.array_equal(context, conversation.teacher(text, number))
            found = [context[i : i + len(block)].tolist() == block for i in range(len(context))]
            assert sum(found) == (number != 1)
    assert sorted(asked) == sorted((t.group, n) for t in result.trajectories for n in range(len(t.turns)))
    assert rollouts.generator.stats.shared > 0
    rollouts.generator.reset()


def test_rollouts_train(decoder, word_chat):
    rollouts = rollouts_of(decoder, word_chat, "objective.name=null-skill")
    batch = rollouts.run(TASKS, 4, update=0).trajectories
    made = turns_for_update(batch, [None] * len(batch), rollouts.config, word_chat)
    assert len(made.turns) == sum(len(t.turns) for t in batch)


def test_evaluation_reports_families_and_an_interval(decoder, word_chat):
    rollouts = rollouts_of(decoder, word_chat, "eval.temperature=0")
    rate, result = rollouts.evaluate(panel("select", 10), update=0)
    assert rate.episodes == 10 and set(rate.by_family) == {"put", "look"}
    assert rate.successes == sum(t.success for t in result.trajectories)
    again, _ = rollouts.evaluate(panel("select", 10), update=0)
    assert again == rate
    low, high = rate.ci95
    assert 0 <= low <= rate.overall <= high <= 1
    assert rate.metrics("val")["val/success_rate"] == rate.overall


def test_wilson_interval_known_values():
    assert wilson_interval(0, 0) == (0, 1)
    np.testing.assert_allclose(wilson_interval(5, 10), (0.2366, 0.7634), atol=1e-4)
    np.testing.assert_allclose(wilson_interval(0, 10), (0, 0.2775), atol=1e-4)


def test_macro_success_weighs_families_equally(make_trajectory):
    won, lost = (make_trajectory([], family=name, success=name == "a") for name in "ab")
    rate = success_rate([won, won, won, lost])
    assert (rate.overall, rate.macro) == (0.75, 0.5)


def test_episode_metrics_name_what_they_count(decoder, word_chat):
    batch = rollouts_of(decoder, word_chat).run(TASKS, 2, update=0).trajectories
    metrics = episode_metrics(batch)
    assert metrics["episode/length/max"] == max(len(t.turns) for t in batch)
    assert metrics["prompt_length/min"] == min(len(c) for t in batch for c in t.contexts())
    assert 0 <= metrics["response_length/clip_ratio"] <= 1
    assert episode_metrics([]) == {}


def test_tasks_of_an_update_are_a_function_of_seed_and_update():
    assert training_tasks(1, 7, 5) == training_tasks(1, 7, 5)
    assert not set(training_tasks(1, 7, 5)) & set(training_tasks(1, 8, 5))
    assert not set(training_tasks(1, 7, 5)) & set(training_tasks(2, 7, 5))
    assert panel("report", 3)[:2] == panel("report", 2)
