import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import FAMILIES, tiny_decoder

from sprout.engine.dual import pair_logprobs
from sprout.engine.forest import Forest, Turn
from sprout.engine.generate import complete, generate
from sprout.engine.generator import Generator
from sprout.engine.rng import derive_key
from sprout.kernels import sample

STOP = 7


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder()


def prompts(count, seed=0, longest=60):
    rng = np.random.default_rng(seed)
    return [rng.integers(8, 50, rng.integers(1, longest)) for _ in range(count)]


def next_logits(decoder, ids):
    """Logits after `ids`, by a forward pass over the whole sequence as one unshared forest."""
    forest = Forest.pack([Turn(ids, np.zeros(1, np.int64))])
    with torch.no_grad():
        hidden, _ = decoder(forest)
        return F.linear(hidden[forest.student_row], decoder.head_weight)


def recompute(decoder, ids, count, key, temperature, top_p):
    """Sample by full re-computation of the sequence for every token."""
    ids, tokens, logprobs = np.asarray(ids), [], []
    for position in range(count):
        token, logprob = sample(
            next_logits(decoder, ids),
            temperature=temperature,
            top_p=top_p,
            key=torch.tensor([key]),
            position=torch.tensor([position]),
        )
        tokens.append(int(token))
        logprobs.append(float(logprob))
        ids = np.append(ids, tokens[-1])
        if tokens[-1] == STOP:
            break
    return np.array(tokens), np.array(logprobs, np.float32)


def run(generator):
    completions = []
    while generator.busy:
        completions += generator.step()
    return completions


def play(generator, episodes=8, turns=3, group=4, temperature=0.8):
    """Multi-turn episodes in groups with one prompt: (ids, logprobs, finished), context by (episode, turn).

    Observations follow from the episode, the turn and the action, as in an environment.
    """
    first = prompts(-(-episodes // group), seed=1, longest=90)
    results, contexts, turn_of = {}, {}, {}

    def submit(session, e, turn):
        turn_of[session], contexts[e, turn] = (e, turn), session.ids
        key = derive_key(3, e, turn)
        generator.submit(session, max_new_tokens=1 + (e + turn) % 9, key=key, temperature=temperature)

    for e in range(episodes):
        submit(generator.open(first[e // group]), e, 0)
    while generator.busy:
        for completion in generator.step():
            session, (e, turn) = completion.session, turn_of[completion.session]
            results[e, turn] = (completion.ids, completion.logprobs, completion.finished)
            if turn + 1 == turns:
                generator.close(session)
                continue
            rng = np.random.default_rng([e, turn, *completion.ids])
            session.extend(rng.integers(8, 50, rng.integers(1, 40)))
            submit(session, e, turn + 1)
    return results, contexts


def assert_same(a, b):
    assert a.keys() == b.keys()
    for at in a:
        assert (a[at][0] == b[at][0]).all() and a[at][2] == b[at][2], at
        assert (a[at][1].view(np.int32) == b[at][1].view(np.int32)).all(), at


@pytest.fixture(scope="module")
def played(decoder):
    return play(Generator(decoder, stop_id=STOP, cache_tokens=8192))


class TestExactness:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (1.0, 1.0), (0.7, 0.8)])
    def test_equals_full_recomputation(self, family, temperature, top_p):
        decoder = tiny_decoder(family)
        given = prompts(4)
        got = generate(
            decoder, given, stop_id=STOP, max_new_tokens=8, seed=5, temperature=temperature, top_p=top_p
        )
        for i, (ids, completion) in enumerate(zip(given, got, strict=True)):
            tokens, logprobs = recompute(decoder, ids, 8, derive_key(5, i), temperature, top_p)
            assert (completion.ids == tokens).all()
            np.testing.assert_allclose(completion.logprobs, logprobs, atol=2e-5)
            assert completion.finished == ("stop" if tokens[-1] == STOP else "length")

    def test_rollout_logprobs_equal_training_logprobs(self, decoder, played, record_property):
        results, contexts = played
        turns = [Turn(contexts[at], ids) for at, (ids, _, _) in results.items()]
        with torch.no_grad():
            trained = pair_logprobs(decoder, Forest.pack(turns), temperature=0.8).student.numpy()
        difference = np.abs(trained - np.concatenate([logprobs for _, logprobs, _ in results.values()])).max()
        record_property("largest_logprob_difference", float(difference))
        assert difference < 2e-5

    def test_tokens_do_not_depend_on_the_batch(self, decoder):
        given = prompts(12, seed=2)
        options = [(0.0, 1.0), (1.0, 1.0), (0.6, 0.7), (1.3, 0.95)]
        together = Generator(decoder, stop_id=STOP, cache_tokens=8192)
        sessions = [together.open(ids) for ids in given]
        for i, session in enumerate(sessions):
            temperature, top_p = options[i % 4]
            together.submit(session, max_new_tokens=1 + i, key=i, temperature=temperature, top_p=top_p)
        batched = {sessions.index(c.session): (c.ids, c.logprobs, c.finished) for c in run(together)}
        alone = {}
        for i, ids in enumerate(given):
            temperature, top_p = options[i % 4]
            single = Generator(decoder, stop_id=STOP, cache_tokens=8192)
            single.submit(single.open(ids), max_new_tokens=1 + i, key=i, temperature=temperature, top_p=top_p)
            (c,) = run(single)
            alone[i] = (c.ids, c.logprobs, c.finished)
        assert_same(batched, alone)

    @pytest.mark.parametrize(
        "settings",
        [
            dict(page_size=1, max_rows=16),
            dict(page_size=256, row_multiple=16),
            dict(cache_tokens=208, max_rows=5, page_size=4),
        ],
        ids=str,
    )
    def test_settings_change_no_bit(self, decoder, played, settings):
        generator = Generator(decoder, stop_id=STOP, **{"cache_tokens": 8192, **settings})
        assert_same(play(generator)[0], played[0])
        assert ("cache_tokens" in settings) == (generator.stats.evicted > 0)
        generator.reset()


class TestSharing:
    def test_group_computes_its_prompt_once(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=4096)
        ids = prompts(1, longest=400, seed=4)[0]
        assert len(ids) > 100
        for member in range(8):
            generator.submit(generator.open(ids), max_new_tokens=5, key=member)
        generated = sum(len(c.ids) for c in run(generator))
        assert generator.stats.rows == len(ids) + 7 + generated - 8
        assert generator.stats.shared == 7 * (len(ids) - 1)

    def test_long_prompts_in_chunks_are_still_computed_once(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=4096, max_rows=32)
        ids = prompts(1, longest=400, seed=4)[0]
        for member in range(8):
            generator.submit(generator.open(ids), max_new_tokens=5, key=member)
        generated = sum(len(c.ids) for c in run(generator))
        assert generator.stats.rows == len(ids) + 7 + generated - 8

    def test_turns_compute_only_what_is_new(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=1024)
        session = generator.open(range(8, 40))
        for turn in range(4):
            generator.submit(session, max_new_tokens=6, key=turn)
            run(generator)
            session.extend(range(10, 20))
        assert generator.stats.rows == len(session) - 10 - 1

    def test_same_system_prompt_is_shared_between_tasks(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=2048, page_size=8)
        system, tasks = np.arange(8, 48), prompts(3, longest=20, seed=6)
        for task in tasks:
            generator.submit(generator.open(np.append(system, task)), max_new_tokens=1, key=0)
        run(generator)
        assert generator.stats.rows == len(system) + sum(map(len, tasks))

    def test_fork_continues_independently(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=1024)
        session = generator.open(range(8, 48))
        generator.submit(session, max_new_tokens=9, key=0)
        run(generator)
        fork = session.fork()
        assert (fork.ids == session.ids).all()
        session.extend([9, 9, 9])
        fork.extend([9, 9, 9])
        before = generator.stats.rows
        for s in (session, fork):
            generator.submit(s, max_new_tokens=9, key=1)
        first, second = run(generator)
        assert (first.ids == second.ids).all() and (first.logprobs == second.logprobs).all()
        assert generator.stats.rows - before == 4 + 1 + 2 * (len(first.ids) - 1)

    def test_pages_outlive_the_session_that_computed_them(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=1024)
        ids = np.arange(8, 48)
        first = generator.open(ids)
        generator.submit(first, max_new_tokens=1, key=0)
        run(generator)
        second = first.fork()
        generator.submit(second, max_new_tokens=8, key=1)
        generator.step()
        generator.close(first)
        (got,) = run(generator)
        (want,) = generate(decoder, [ids], stop_id=STOP, max_new_tokens=1)
        expected, _ = recompute(decoder, second.ids[:41], 8, 1, 1.0, 1.0)
        assert (got.ids == expected).all()
        assert want.finished in ("stop", "length")


class TestCapacity:
    def test_small_cache_delays_sessions(self, decoder):
        given = prompts(8, longest=50, seed=8)
        large = generate(decoder, given, stop_id=STOP, max_new_tokens=10)
        small = generate(decoder, given, stop_id=STOP, max_new_tokens=10, cache_tokens=96)
        for a, b in zip(large, small, strict=True):
            assert (a.ids == b.ids).all() and (a.logprobs == b.logprobs).all()

    def test_all_pages_return(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=2048)
        free = generator._residency.allocator.free
        play(generator)
        assert generator._residency.allocator.free == free
        assert not generator._residency.allocator.references.any()

    def test_closing_a_running_session_frees_it(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=256, max_rows=2)
        sessions = [generator.open(ids) for ids in prompts(4, longest=30)]
        for session in sessions:
            generator.submit(session, max_new_tokens=20, key=0)
        generator.step()
        for session in sessions:
            generator.close(session)
        assert not generator.busy and generator.step() == []
        generator.reset()

    def test_turn_that_never_fits_is_refused(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=64)
        session = generator.open(range(8, 48))
        with pytest.raises(ValueError, match=r"40 \+ 30 tokens never fits cache_tokens=64"):
            generator.submit(session, max_new_tokens=30, key=0)
        generator.submit(session, max_new_tokens=25, key=0)
        assert len(run(generator)) == 1


class TestWeights:
    def test_reset_demands_that_no_session_is_alive(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=256)
        session = generator.open([9, 10])
        with pytest.raises(AssertionError, match="1 sessions are alive"):
            generator.reset()
        generator.close(session)
        generator.reset()

    def test_new_weights_leave_nothing_of_the_old(self):
        decoder, ids = tiny_decoder(), prompts(1, seed=4)[0]
        generator = Generator(decoder, stop_id=STOP, cache_tokens=1024)
        complete(generator, [ids] * 4, max_new_tokens=8, keys=range(4))
        decoder.load_state_dict(tiny_decoder(seed=9).state_dict())
        generator.reset()
        again = complete(generator, [ids] * 4, max_new_tokens=8, keys=range(4))
        fresh = complete(
            Generator(decoder, stop_id=STOP, cache_tokens=1024), [ids] * 4, max_new_tokens=8, keys=range(4)
        )
        for a, b in zip(again, fresh, strict=True):
            assert (a.ids == b.ids).all() and (a.logprobs == b.logprobs).all()


class TestTurns:
    def test_completion_holds_the_stop_token_and_session_the_completion(self, decoder):
        generator = Generator(decoder, stop_id=range(8, 50), cache_tokens=256)
        session = generator.open([9, 10, 11])
        generator.submit(session, max_new_tokens=50, key=3)
        (completion,) = run(generator)
        assert completion.finished == "stop"
        assert len(completion.ids) == len(completion.logprobs)
        assert completion.ids[-1] >= 8 and (completion.ids[:-1] < 8).all()
        assert (session.ids == [9, 10, 11, *completion.ids]).all()

    def test_cut_turn_can_be_continued(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=256)
        session = generator.open([9, 10, 11])
        generator.submit(session, max_new_tokens=1, key=3)
        (cut,) = run(generator)
        assert cut.finished == "length" and len(cut.ids) == 1
        generator.submit(session, max_new_tokens=5, key=4)
        (rest,) = run(generator)
        expected, _ = recompute(decoder, [9, 10, 11, *cut.ids], 5, 4, 1.0, 1.0)
        assert (rest.ids == expected).all()

    def test_keys_decide_the_tokens(self, decoder):
        a, b, c = complete(
            Generator(decoder, stop_id=STOP, cache_tokens=1024),
            [[9, 10]] * 3,
            max_new_tokens=30,
            keys=[1, 2, 1],
        )
        assert (a.ids == c.ids).all() and a.ids.tolist() != b.ids.tolist()

    def test_progress_counts_up_to_all(self, decoder):
        seen = []
        generate(
            decoder, prompts(9), stop_id=STOP, max_new_tokens=9, progress=lambda *counts: seen.append(counts)
        )
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        assert seen[-1] == (9, 9)

    def test_no_prompts(self, decoder):
        assert generate(decoder, [], stop_id=STOP, max_new_tokens=9) == []

    def test_interrupt_passes_through_and_closes_the_sessions(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=1024)

        def interrupt(done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            complete(generator, prompts(5), max_new_tokens=9, keys=range(5), progress=interrupt)
        generator.reset()


class TestBadInput:
    def test_context_beyond_the_model(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=1024)
        with pytest.raises(ValueError, match="600 tokens exceeds the model's max_position_embeddings=512"):
            generator.open(np.full(600, 9))
        session = generator.open(np.full(500, 9))
        with pytest.raises(ValueError, match=r"513 tokens .*=512"):
            generator.submit(session, max_new_tokens=13, key=0)
        with pytest.raises(ValueError, match=r"513 tokens .*=512"):
            session.extend(np.full(13, 9))
        assert len(session) == 500

    def test_ids_outside_the_vocabulary(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=256)
        with pytest.raises(ValueError, match="ids holds 50, outside the model's vocabulary of 50"):
            generator.open([3, 50])
        with pytest.raises(ValueError, match="stop_id holds -1"):
            Generator(decoder, stop_id=-1, cache_tokens=256)

    def test_empty_session(self, decoder):
        with pytest.raises(ValueError, match="at least one id"):
            Generator(decoder, stop_id=STOP, cache_tokens=256).open([])

    def test_unfinished_turn(self, decoder):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=256)
        session = generator.open([9])
        generator.submit(session, max_new_tokens=5, key=0)
        for action in (
            lambda: session.extend([9]),
            lambda: generator.submit(session, max_new_tokens=1, key=0),
        ):
            with pytest.raises(ValueError, match="last turn is not finished"):
                action()

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (dict(max_new_tokens=0), "max_new_tokens must be at least 1, not 0"),
            (dict(temperature=-1.0), "temperature must be 0"),
            (dict(temperature=float("nan")), "temperature must be 0"),
            (dict(top_p=0.0), r"top_p must be in \(0, 1\], not 0"),
            (dict(top_p=1.5), r"top_p must be in \(0, 1\], not 1.5"),
        ],
    )
    def test_sampling_options(self, decoder, options, problem):
        generator = Generator(decoder, stop_id=STOP, cache_tokens=256)
        with pytest.raises(ValueError, match=problem):
            generator.submit(generator.open([9]), **{"max_new_tokens": 4, "key": 0, **options})

    @pytest.mark.parametrize("name", ["cache_tokens", "page_size", "max_rows", "row_multiple"])
    def test_sizes(self, decoder, name):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            Generator(decoder, stop_id=STOP, **{"cache_tokens": 64, name: 0})
