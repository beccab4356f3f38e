"""Episodes of the recipe: what is trained on, in both layouts, and rollouts that stop at closing tags."""

import numpy as np
import pytest

from sprout.engine.generator import Completion, Generator
from sprout.seed.config import load_config
from sprout.seed.envs.search.expert import demonstrate
from sprout.seed.episode import Episode, Task
from sprout.seed.objectives import turns_for_update
from sprout.seed.rollout import Rollouts
from sprout.seed.trajectory import Skill

LAYOUTS = ("append", "window")
PLACES = {"append": "before_action", "window": "after_task"}


def settings(layout, *more):
    return load_config(None, [
        "env.name=search", f"rollout.history_layout={layout}", f"rollout.skill_placement={PLACES[layout]}",
        "rollout.history_turns=4", "rollout.max_context_tokens=6000", "rollout.cache_tokens=16000", *more,
    ])  # fmt: skip


def play(env, chat, layout, responses, seed=0, member=0):
    """The trajectory of an episode with these responses."""
    episode = Episode(
        env, chat, layout, name="search", task=Task("train", seed), member=member, update=1, max_turns=4
    )
    for response in responses:
        ids = np.asarray(chat.encode(response), np.int64)
        episode.advance(Completion(None, ids, np.full(len(ids), -0.5, np.float32), "stop"))
    assert episode.done
    return episode.trajectory


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_retrieved_token_is_in_the_loss(make_env, bpe_chat, layout):
    config = settings(layout)
    env = make_env()
    responses = [turn.response for turn, _ in demonstrate(env, "train", 0)]
    won = play(env, bpe_chat, config.rollout, responses)
    lost = play(
        env, bpe_chat, config.rollout, ["<search>river</search>", "<answer>nothing</answer>"], member=1
    )
    assert won.success and not lost.success and (won.reward, lost.reward) == (1.0, 0.0)
    skill = Skill(text="Search well.", analyzer="test")
    update = turns_for_update([won, lost], [skill, skill], config, bpe_chat)
    assert len(update.turns) == len(responses) + 2
    said = [*responses, "<search>river</search>", "<answer>nothing</answer>"]
    for turn, response in zip(update.turns, said, strict=True):
        assert bpe_chat.decode(turn.action.tolist()) == response
        assert len(turn.mask) == len(turn.action) and turn.mask.all()
        assert "<information>" not in response
    last = bpe_chat.decode(update.turns[-1].context.tolist())
    assert "<information>Doc 1(Title:" in last and last.count("<search>river</search>") == 1
    assert "Search well." not in last
    assert "Search well." in bpe_chat.decode(update.turns[-1].teacher_context.tolist())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_action_only_marks_the_query(make_env, bpe_chat, layout):
    config = settings(layout, "objective.opd_mask=action_only")
    response = "<think>the river</think>\n<search>the river</search>"
    trajectory = play(make_env(), bpe_chat, config.rollout, [response, "<answer>Nile</answer>"])
    skill = Skill(text="s", analyzer="test")
    turn = turns_for_update([trajectory], [skill], config, bpe_chat).turns[0]
    marked = bpe_chat.decode(turn.action[turn.opd_mask > 0].tolist())
    assert marked.strip(" <>") == "the river" and turn.opd_mask.sum() < len(turn.action) / 2


def test_rollouts_stop_at_closing_tags(make_env, bpe_chat, make_decoder):
    """A decoder that says one thing only is stopped by the environment's strings, and acts."""
    config = settings(
        "append", "rollout.max_response_tokens=60", "rollout.temperature=0.001", "env.max_turns=2"
    )
    decoder = make_decoder(460)
    generator = Scripted(decoder, bpe_chat, "<think>x</think><search>nile</search> and more")
    rollouts = Rollouts(generator, bpe_chat, make_env, config)
    (trajectory,) = rollouts.run([Task("train", 0)], 1, 1).trajectories
    assert [turn.response for turn in trajectory.turns] == ["<think>x</think><search>nile</search>"] * 2
    assert all(turn.finished == "stop" and turn.well_formed for turn in trajectory.turns)
    assert trajectory.turns[0].command == "nile" and "<information>" in trajectory.final_observation


class Scripted(Generator):
    """Samples the ids of a text, whatever the weights say."""

    def __init__(self, decoder, chat, text):
        super().__init__(decoder, stop_id=chat.stop_id, cache_tokens=16000)
        self.text = chat.encode(text)

    def _sample(self, hidden, count):
        token, logprob = super()._sample(hidden, count)
        for place, row in enumerate(self._rows.sampled_sequence[:count]):
            token[place] = self.text[self.table.known[row] - self.table.start[row]]
        return token, logprob
