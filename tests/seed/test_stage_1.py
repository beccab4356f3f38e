"""What Stage 1 makes of the collected trajectories: pairs, batches and a model that writes skills."""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from settings import changed

from sprout.engine.metrics import read_metrics
from sprout.seed.policy import load_policy
from sprout.seed.stages.collect import stored
from sprout.seed.stages.sft import Batches, held_out, skill_pairs


def annotated(tiny):
    """The annotated trajectories with responses that any tokenizer reads."""
    trajectories = list(stored(tiny.folder.annotated))
    for trajectory in trajectories:
        for turn in trajectory.turns:
            turn.response = "look"
    return trajectories


def test_stage_1_holds_out_whole_tasks(tiny, player):
    trajectories = annotated(tiny)
    pairs = skill_pairs(trajectories, player.policy, player.environment, tiny.config)
    tasks = held_out(sorted({t.seed for t in trajectories}), tiny.config)
    assert len(tasks) == 1 and {t.seed for t in pairs.held_out_trajectories} == tasks
    assert (len(pairs.train), len(pairs.held_out)) == (6, 2)


def test_skill_pairs_that_do_not_fit_are_counted_and_none_left_is_an_error(tiny, player):
    trajectories = annotated(tiny)
    trajectories[0].skill.valid = False
    pairs = skill_pairs(trajectories, player.policy, player.environment, tiny.config)
    assert pairs.left_out == {"invalid": 1, "unreadable": 0, "too_long": 0}
    trajectories[1].turns[0].response = "<assistant>"
    with pytest.raises(ValueError, match=r"no skill pair is left.*1 invalid, 1 unreadable, 6 too_long"):
        short = changed(tiny.config, sft__max_tokens=8)
        skill_pairs(trajectories, player.policy, player.environment, short)


def test_an_epoch_shows_every_pair_once_in_an_order_of_its_own(tiny, player):
    trajectories = annotated(tiny)
    config = changed(tiny.config, sft__epochs=2, sft__batch_size=3, sft__replay_fraction=0.34)
    pairs = skill_pairs(trajectories, player.policy, player.environment, config)
    batches = Batches(pairs.train, player.policy, config)
    assert (batches.steps_per_epoch, batches.steps) == (3, 6)
    ids = {id(turn) for turn in pairs.train}
    seen = [[id(turn) for turn in batches(step) if id(turn) in ids] for step in range(batches.steps)]
    epochs = [[*chain(*seen[:3])], [*chain(*seen[3:])]]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(ids) and epochs[0] != epochs[1]
    assert all(len(batches(step)) > len(seen[step]) for step in range(batches.steps)), "replayed lessons"


def test_stage_1_trains_on_the_skill_tokens_only(tiny, player):
    trajectories = annotated(tiny)
    pairs = skill_pairs(trajectories, player.policy, player.environment, tiny.config)
    for turn, trajectory in zip(pairs.held_out, pairs.held_out_trajectories, strict=True):
        text = player.policy.chat.decode(turn.action.tolist())
        assert text.replace(" ", "") == trajectory.skill.raw.replace(" ", "")
        assert turn.action[-1] == player.policy.chat.stop_id and turn.mask is None


def test_stage_1_model_differs_from_the_base_and_logs_its_quality(tiny):
    base, sft = (load_policy(path, tiny.config) for path in (tiny.base_model(), tiny.start_model()))
    assert not torch.equal(base.decoder.head_weight, sft.decoder.head_weight)
    last = read_metrics(tiny.folder.sft / "metrics.jsonl")[-1]
    assert {"held_out_loss_before", "held_out_loss", "skill_valid_rate", "skill_right_rate"} <= last.keys()


def test_no_epochs_of_stage_1_start_stage_2_from_the_base(tiny):
    run = replace(tiny, config=changed(tiny.config, sft__epochs=0))
    assert run.start_model() == run.base_model()
