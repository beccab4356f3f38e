"""Contexts: what is shared, where the skill goes, and that sampled ids are never touched."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sprout.seed.conversation import Conversation, action_ids
from sprout.seed.schema import RolloutSection

LAYOUTS = list(itertools.product(("append", "window"), ("before_action", "after_task")))
TEXTS = ["you see a mug .", "nothing happens .", "shelf 2 is here .", "you see pen 1 , pen 2 ."]
SKILL = "open the fridge ."


def layout_of(history="append", placement="before_action", turns=2, template="hint : {skill}"):
    return RolloutSection(
        history_layout=history, skill_placement=placement, history_turns=turns, skill_template=template
    )


def play(chat, layout, actions, system="put it in"):
    conversation = Conversation(chat, layout, task="put a mug in the fridge .", system=system)
    for index, action in enumerate(actions):
        conversation.observe(TEXTS[index % len(TEXTS)])
        conversation.act(action)
    conversation.observe(TEXTS[len(actions) % len(TEXTS)])
    return conversation


def without(block, context):
    """Removes the one occurrence of `block` from `context`."""
    block, context = list(block), list(context)
    places = [i for i in range(len(context)) if context[i : i + len(block)] == block]
    assert len(places) == 1
    return context[: places[0]] + context[places[0] + len(block) :]


def responses(chat):
    return [action_ids(chat, text) for text in ("open the fridge", "take a mug", "go to shelf 1")]


@pytest.mark.parametrize(("history", "placement"), LAYOUTS)
def test_contexts_differ_in_the_skill_block_only(chat, history, placement):
    conversation = play(chat, layout_of(history, placement), responses(chat))
    text = f"hint : {SKILL}"
    block = chat.message("user", text) if placement == "before_action" else chat.encode(text + "\n")
    for turn in range(len(conversation)):
        student, teacher = conversation.student(turn), conversation.teacher(SKILL, turn)
        assert without(block, teacher) == student.tolist()
        assert np.array_equal(conversation.teacher("", turn), student)


@pytest.mark.parametrize(("history", "placement"), LAYOUTS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_sampled_ids_appear_verbatim(word_chat, history, placement, data):
    plain = st.integers(3, 30)
    actions = data.draw(st.lists(st.lists(plain, min_size=1, max_size=5), min_size=1, max_size=5))
    conversation = play(word_chat, layout_of(history, placement), actions)
    opening, closing = word_chat.opening("assistant"), word_chat.closing("assistant")
    for turn in range(len(conversation)):
        kept = actions[:turn] if history == "append" else actions[max(0, turn - 2) : turn]
        rest = conversation.teacher(SKILL, turn).tolist()
        for action in kept:
            piece = [*opening, *action, *closing]
            start = next(i for i in range(len(rest)) if rest[i : i + len(piece)] == piece)
            rest = rest[start + len(piece) :]
        assert rest[-len(opening) :] == opening


def test_append_contexts_extend_each_other(chat):
    actions = responses(chat)
    conversation = play(chat, layout_of(), actions)
    for turn, action in enumerate(actions):
        before = [*conversation.student(turn), *action]
        assert conversation.student(turn + 1)[: len(before)].tolist() == before


def test_before_action_history_is_a_prefix_of_the_teacher(chat):
    conversation = play(chat, layout_of(), responses(chat))
    history = conversation.history()
    for context in (conversation.student(), conversation.teacher(SKILL)):
        assert np.array_equal(context[: len(history)], history)
    assert len(conversation.student()) == len(history) + len(chat.opening("assistant"))


def test_append_equals_the_chat_template_on_ordinary_text(chat):
    conversation = play(chat, layout_of(), responses(chat))
    texts = (TEXTS[1], "take a mug", TEXTS[2], "go to shelf 1")
    roles = ("user", "assistant") * 2
    tail = [i for role, text in zip(roles, texts, strict=True) for i in chat.message(role, text)]
    tail += [*chat.message("user", TEXTS[3]), *chat.opening("assistant")]
    assert conversation.student()[-len(tail) :].tolist() == tail


def test_an_action_cut_by_length_is_closed_and_a_stopped_one_is_not_closed_twice(chat):
    cut = chat.encode("open the fridge")
    contexts = [play(chat, layout_of(), [action]).student() for action in (cut, [*cut, chat.stop_id])]
    assert np.array_equal(*contexts)


def test_window_keeps_the_task_and_the_last_turns(chat):
    actions = responses(chat)
    context = play(chat, layout_of("window", turns=1), actions).student().tolist()
    text = chat.decode(context)
    assert "put a mug in the fridge" in text and "go to shelf 1" in text and "take a mug" not in text
    assert play(chat, layout_of("window", turns=0), actions).student().tolist() == [
        *chat.message("system", "put it in"),
        *chat.opening("user"),
        *chat.encode("put a mug in the fridge .\n"),
        *chat.encode(TEXTS[3]),
        *chat.closing("user"),
        *chat.opening("assistant"),
    ]


def test_a_skill_with_braces_is_text(word_chat):
    teacher = play(word_chat, layout_of(), []).teacher("{ } open")
    assert without(word_chat.message("user", "hint : { } open"), teacher)
