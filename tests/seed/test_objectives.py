"""Turns for the engine: whose advantage, whose mask, which teacher, and what is refused."""

import numpy as np
import pytest

from sprout.engine.forest import Forest
from sprout.seed.analyzer.sources import teacher_skills
from sprout.seed.config import load_config, with_method
from sprout.seed.conversation import Conversation, action_ids
from sprout.seed.objectives import command_mask, needs_skills, turns_for_update, update_settings
from sprout.seed.trajectory import Skill

OBSERVATIONS = ["you see a mug .", "nothing happens .", "shelf 2 is here .", "you see pen 1 ."]
RESPONSES = ["open the fridge", "take a mug", "go to shelf 1"]


def config_of(*overrides):
    return load_config(None, ["rollout.max_response_tokens=16", "rollout.max_context_tokens=400", *overrides])


@pytest.fixture
def episode(chat, make_trajectory, make_turn):
    """Builds a trajectory through the conversation, as a rollout would."""

    def build(group, member, reward=1.0, turns=2, config=None, invalid=(), **fields):
        fields |= {"group": group, "member": member, "seed": int(group), "reward": reward, "task": "put it"}
        trajectory, previous = make_trajectory([], **fields), []
        conversation = Conversation(chat, (config or config_of()).rollout, task=trajectory.task)
        for number in range(turns):
            observation, response = OBSERVATIONS[(number + member) % 4], RESPONSES[number % 3]
            conversation.observe(observation)
            context, action = conversation.student(), action_ids(chat, response)
            recorded = {"observation": observation, "response": response, "command": response}
            recorded["logprobs"] = [-0.25 * (number + 1)] * len(action)
            recorded["admissible"] = number not in invalid
            trajectory.turns.append(make_turn(context, action, previous, **recorded))
            conversation.act(action)
            previous = [*context, *action]
        return trajectory

    return build


def skill(text="open it", valid=True):
    return Skill(text=text, valid=valid, analyzer="test")


def test_every_turn_carries_its_own_record(chat, episode):
    batch = [episode("1", 0, 1.0, turns=3), episode("1", 1, 0.0, turns=1), episode("2", 0, 0.0)]
    made = turns_for_update(batch, [skill()] * 3, config_of(), chat)
    assert made.owners == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    for turn, (owner, number) in zip(made.turns, made.owners, strict=True):
        record = batch[owner].turns[number]
        assert turn.action.tolist() == record.action
        assert np.array_equal(turn.context, batch[owner].contexts()[number])
        np.testing.assert_array_equal(turn.old_logprob, np.float32(record.logprobs))
        assert len(turn.mask) == len(turn.action) == len(turn.advantage)
    assert made.turns[0].advantage[0] > 0 > made.turns[3].advantage[0]
    assert (made.turns[4].advantage == 0).all()
    assert Forest.pack(made.turns).rows > 0


@pytest.mark.parametrize("left_out", [{"reward": None}, {"reward": float("nan")}, {"rejected": "refused"}])
def test_a_left_out_trajectory_trains_nothing_and_moves_no_baseline(chat, episode, left_out):
    kept = [episode("1", 0, 1.0), episode("1", 1, 0.0)]
    out = episode("1", 2, **left_out)
    alone = turns_for_update(kept, [skill()] * 2, config_of(), chat)
    with_it = turns_for_update([*kept, out], [skill()] * 3, config_of(), chat)
    assert with_it.owners == alone.owners
    for a, b in zip(alone.turns, with_it.turns, strict=True):
        np.testing.assert_array_equal(a.advantage, b.advantage)
    assert with_it.metrics["seed/trajectories_excluded"] == 1


def test_groups_and_tasks_are_one_to_one(chat, episode):
    other = episode("1", 1)
    other.seed = 99
    with pytest.raises(ValueError, match="group 1 mixes tasks"):
        turns_for_update([episode("1", 0), other], [None] * 2, config_of(), chat)
    other = episode("2", 0)
    other.seed = 1
    with pytest.raises(ValueError, match="in groups 1 and 2"):
        turns_for_update([episode("1", 0), other], [None] * 2, config_of(), chat)
    with pytest.raises(ValueError, match="1/0 occurs twice"):
        turns_for_update([episode("1", 0), episode("1", 0)], [None] * 2, config_of(), chat)


@pytest.mark.parametrize("history", ["append", "window"])
@pytest.mark.parametrize("placement", ["before_action", "after_task"])
def test_null_skill_gives_the_student_context(chat, episode, history, placement):
    overrides = (f"rollout.history_layout={history}", f"rollout.skill_placement={placement}")
    config = with_method(config_of("rollout.history_turns=1", *overrides), "null-skill")
    made = turns_for_update([episode("1", 0, turns=3, config=config)], [None], config, chat)
    for turn in made.turns:
        assert np.array_equal(turn.teacher_context, turn.context)
    assert update_settings(config).coefficients.opd > 0


def test_a_skill_that_does_not_parse_means_no_teacher_and_rl_still_applies(chat, episode):
    batch = [episode("1", 0, 1.0), episode("1", 1, 0.0)]
    made = turns_for_update(batch, [skill(valid=False), skill()], config_of(), chat)
    assert [turn.teacher_context is None for turn in made.turns] == [True, True, False, False]
    assert (made.turns[0].advantage != 0).all()
    assert batch[0].teacher_skill is None and batch[1].teacher_skill == "open it"
    assert batch[1].skill_donor == "1/1"


def test_grpo_has_no_teacher(chat, episode):
    config = with_method(config_of(), "grpo")
    batch = [episode("1", 0)]
    made = turns_for_update(batch, [skill()], config, chat)
    assert all(turn.teacher_context is None for turn in made.turns)
    assert batch[0].teacher_skill is None
    assert update_settings(config).coefficients.opd == 0


def test_invalid_actions_are_penalised_one_by_one_and_may_lose_their_teacher(chat, episode):
    config = config_of("objective.validity=admissible", "objective.opd_invalid_actions=drop")
    made = turns_for_update([episode("1", 0, 0.0, turns=3, invalid=(1,))], [skill()], config, chat)
    assert [float(turn.advantage[0]) for turn in made.turns] == pytest.approx([0, -0.1, 0])
    assert [turn.teacher_context is None for turn in made.turns] == [False, True, False]


def test_format_validity_ignores_admissibility(chat, episode):
    made = turns_for_update([episode("1", 0, 0.0, turns=2, invalid=(1,))], [skill()], config_of(), chat)
    assert all((turn.advantage == 0).all() for turn in made.turns)


def test_teacher_overflow_is_an_error_or_a_counted_loss_of_the_teacher(chat, episode):
    batch = [episode("1", 0, turns=2)]
    longest = len(batch[0].contexts()[1]) + len(batch[0].turns[1].action)
    limits = (f"rollout.max_context_tokens={longest}", "rollout.max_response_tokens=1")
    with pytest.raises(ValueError, match="trajectory 1/0, turn 1: the teacher context needs"):
        turns_for_update(batch, [skill()], config_of(*limits), chat)
    config = config_of(*limits, "objective.teacher_context_overflow=drop_opd")
    made = turns_for_update(batch, [skill()], config, chat)
    assert [turn.teacher_context is None for turn in made.turns] == [False, True]
    assert made.metrics["seed/teacher_overflow_turns"] == 1


def test_a_trajectory_of_another_layout_is_refused(chat, episode):
    batch = [episode("1", 0, turns=3)]
    window = config_of("rollout.history_layout=window", "rollout.history_turns=1")
    with pytest.raises(ValueError, match="turn 2: its context is not the one"):
        turns_for_update(batch, [skill()], window, chat)


def test_shuffled_skills_come_from_other_tasks_deterministically(episode):
    batch = [episode(str(g), m) for g in range(1, 5) for m in range(3)]
    skills = [skill(f"skill {trajectory.id}") for trajectory in batch]
    chosen = teacher_skills(batch, skills, "shuffled", seed=3)
    assert chosen == teacher_skills(batch, skills, "shuffled", seed=3)
    for trajectory, (text, donor) in zip(batch, chosen, strict=True):
        assert text == f"skill {donor}" and donor.split("/")[0] != trajectory.group
    assert len({donor for _, donor in chosen}) == len(batch)
    assert {text for text, _ in teacher_skills(batch[:3], skills[:3], "shuffled")} == {None}


def test_command_mask_marks_the_command_alone(chat):
    action = [*chat.encode("you see open > go to shelf 1 !"), chat.stop_id]
    mask = command_mask(action, "go to shelf 1", chat)
    marked = chat.decode([i for i, on in zip(action, mask, strict=True) if on])
    assert marked.strip() == "go to shelf 1"
    assert mask[-1] == 0
    assert not command_mask(action, "take it", chat).any()
    assert not command_mask(action, "", chat).any()


def test_action_only_distils_the_command_and_trains_the_whole_response(chat, episode):
    made = turns_for_update([episode("1", 0)], [skill()], config_of("objective.opd_mask=action_only"), chat)
    for turn in made.turns:
        assert turn.mask.all()
        assert turn.opd_mask[-1] == 0 and turn.opd_mask[:-1].all()


def test_opid_and_rlsd_shape_the_advantages_and_need_skills():
    opid = with_method(config_of(), "opid")
    assert needs_skills(opid.objective)
    assert update_settings(opid).shaping.additive == 0.1 and update_settings(opid).coefficients.opd == 0
    rlsd = with_method(config_of(), "rlsd")
    strengths = [update_settings(rlsd, update).shaping.multiplicative for update in (1, 51, 101, 150)]
    assert needs_skills(rlsd.objective) and strengths == pytest.approx([0.5, 0.25, 0, 0])
