"""Responses that end at a string: in the generator, and in rollouts."""

import numpy as np
import pytest

from sprout.engine.generator import Generator
from sprout.engine.stopping import StopStrings

PROMPTS = ["you see pen", "put a mug in the fridge", "look", "open it"]


@pytest.fixture(scope="module")
def decoder(bpe_chat, make_decoder):
    return make_decoder(max(bpe_chat.encode("end take fridge"), default=0) + 40)


def respond(decoder, chat, prompts, stops=None, tokens=24):
    """Completions by prompt; `stops` gives each prompt its strings."""
    generator = Generator(decoder, stop_id=chat.stop_id, cache_tokens=4096)
    sessions = [generator.open(chat.encode(prompt)) for prompt in prompts]
    for number, session in enumerate(sessions):
        strings = (stops or {}).get(number)
        stop = StopStrings(strings, chat, decoder.config.vocab_size) if strings else None
        generator.submit(session, max_new_tokens=tokens, key=number, stop_strings=stop)
    done = {}
    while generator.busy:
        done |= {completion.session.row: completion for completion in generator.step()}
    return [done[session.row] for session in sessions]


def shortest_with(chat, ids, string):
    """The first ids of a response that hold the string."""
    return next(ids[:n] for n in range(len(ids) + 1) if string in chat.decode(ids[:n]))


def test_a_response_ends_with_the_token_that_completes_a_string(decoder, bpe_chat):
    free = respond(decoder, bpe_chat, PROMPTS)
    text = bpe_chat.decode(free[1].ids[:-1])
    checked = 0
    for start in range(0, len(text) - 3, 3):
        string = text[start : start + 3]
        if "\ufffd" in string:
            continue
        wanted = shortest_with(bpe_chat, free[1].ids, string)
        found = respond(decoder, bpe_chat, PROMPTS, {1: ("zzzz", string), 2: ("never there",)})
        assert found[1].ids.tolist() == wanted.tolist() and found[1].finished == "stop"
        np.testing.assert_array_equal(found[1].logprobs, free[1].logprobs[: len(wanted)])
        for other in (0, 2, 3):
            assert found[other].ids.tolist() == free[other].ids.tolist()
            assert found[other].finished == free[other].finished
        checked += 1
    assert checked > 3


def test_strings_hold_for_one_turn_only(decoder, bpe_chat):
    (free,) = respond(decoder, bpe_chat, PROMPTS[:1])
    string = bpe_chat.decode(free.ids[:2])
    generator = Generator(decoder, stop_id=bpe_chat.stop_id, cache_tokens=4096)
    stop = StopStrings([string], bpe_chat, decoder.config.vocab_size)
    lengths = []
    for strings in (stop, None):
        session = generator.open(bpe_chat.encode(PROMPTS[0]))
        generator.submit(session, max_new_tokens=24, key=0, stop_strings=strings)
        completions = []
        while generator.busy:
            completions += generator.step()
        lengths.append(len(completions[0].ids))
        generator.close(session)
    assert lengths == [2, len(free.ids)]


def test_the_last_token_that_is_allowed_may_complete_a_string(decoder, bpe_chat):
    (free,) = respond(decoder, bpe_chat, PROMPTS[:1], tokens=5)
    string = bpe_chat.decode(free.ids)
    (found,) = respond(decoder, bpe_chat, PROMPTS[:1], {0: (string,)}, tokens=5)
    assert found.finished == "stop" and len(found.ids) == 5


def test_characters_of_several_tokens(bpe_chat):
    stop = StopStrings(["né"], bpe_chat, 400)
    ids = np.array(bpe_chat.encode("a né b"))
    ends = [n for n in range(1, len(ids) + 1) if stop.ends(ids[:n])]
    assert bpe_chat.decode(ids[: ends[0]]) == "a né"


@pytest.mark.parametrize("strings", [[], [""], ["a", ""]])
def test_empty_strings_are_refused(bpe_chat, strings):
    with pytest.raises(ValueError, match="must not be empty"):
        StopStrings(strings, bpe_chat, 400)
