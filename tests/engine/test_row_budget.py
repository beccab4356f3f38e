"""Out of memory in the middle of an update: done again with smaller micro-batches, or said in one line."""

import numpy as np
import pytest
import torch
from tiny import random_turns, tiny_decoder

from sprout.engine import scoring, update
from sprout.engine.forest import Turn
from sprout.engine.microbatch import rows_alone
from sprout.engine.optimizer import Optimizer, OptimizerConfig
from sprout.engine.row_budget import RowBudget, is_out_of_memory
from sprout.engine.scoring import score_turns
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients

EVERYTHING = PolicyLossCoefficients(kl=0.1, entropy=0.01, opd=0.3, beta=2.0)


@pytest.fixture
def memory(monkeypatch):
    """`memory.rows`: forests of more rows do not fit; `memory.spares`: how many do before the first fails."""

    class Memory:
        rows, spares, failed = 10**9, 0, 0
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")

    real = update.pair_logprobs

    def limited(decoder, forest, **options):
        if forest.rows > Memory.rows:
            if Memory.spares == 0:
                Memory.failed += 1
                raise Memory.error
            Memory.spares -= 1
        return real(decoder, forest, **options)

    for module in (update, scoring):
        monkeypatch.setattr(module, "pair_logprobs", limited)
    return Memory


def trained(turns, rows, steps=1):
    decoder = tiny_decoder(dtype=torch.float64)
    settings = UpdateSettings(EVERYTHING, rows_per_micro_batch=rows, optimizer_steps=steps)
    result = policy_update(decoder, Optimizer(decoder, OptimizerConfig(lr=1e-3)), turns, settings)
    return decoder, result


@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("steps", [1, 2])
def test_an_update_survives_with_the_same_result(memory, steps, spares):
    turns = random_turns(4, count=32)
    longest = max(map(rows_alone, turns))
    calm, expected = trained(turns, 2 * longest, steps)
    memory.rows, memory.spares = longest, spares
    with pytest.warns(UserWarning, match=f"going on with micro-batches of {longest} rows"):
        decoder, result = trained(turns, 2 * longest, steps)
    assert memory.failed == 1 and result.metrics["actor/rows_per_micro_batch"] == longest
    assert (result.metrics["actor/out_of_memory"], expected.metrics["actor/out_of_memory"]) == (1, 0)
    for mine, its in zip(decoder.parameters(), calm.parameters(), strict=True):
        torch.testing.assert_close(mine, its, atol=1e-11, rtol=1e-8)
    for name in ("actor/pg_loss", "seed/opd_loss", "actor/entropy", "seed/delta_mean", "actor/grad_norm"):
        assert result.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-6)
    assert len(result.scores) == len(turns)


def test_re_scoring_survives_too(memory):
    turns = random_turns(5, count=10)
    longest = max(map(rows_alone, turns))
    decoder = tiny_decoder(dtype=torch.float64)
    expected = score_turns(decoder, turns, temperature=1.0, rows_per_micro_batch=8 * longest)
    memory.rows = longest
    with pytest.warns(UserWarning, match="going on with"):
        found = score_turns(decoder, turns, temperature=1.0, rows_per_micro_batch=8 * longest)
    for (mine, _), (its, _) in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-6)


def test_what_cannot_be_split_is_said_and_changes_nothing(memory):
    turns = [Turn(np.arange(20), np.arange(4), advantage=np.ones(4, np.float32))]
    memory.rows = 10
    decoder = tiny_decoder()
    before = [p.detach().clone() for p in decoder.parameters()]
    optimizer = Optimizer(decoder, OptimizerConfig(lr=1e-3))
    with pytest.raises(
        MemoryError, match=r"micro-batches of 40 rows \(one turn needs 24\): lower train.rows"
    ):
        policy_update(decoder, optimizer, turns, UpdateSettings(EVERYTHING, rows_per_micro_batch=40))
    assert all(torch.equal(p, q) for p, q in zip(decoder.parameters(), before, strict=True))
    assert optimizer.updates == 0


def test_other_errors_pass(memory):
    memory.rows, memory.error = 0, RuntimeError("shapes do not match")
    with pytest.raises(RuntimeError, match="shapes do not match"):
        trained(random_turns(4, count=3), 1000)


def test_a_failed_allocation_is_known_by_its_error():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("no")) and not is_out_of_memory(ValueError())


def test_the_budget_remembers():
    budget = RowBudget(64)
    fits = [False, False, True]

    def work(rows):
        if not fits.pop(0):
            raise MemoryError
        return rows

    with pytest.warns(UserWarning, match="out of memory"):
        assert budget.fit([Turn(np.arange(3), np.arange(2))], work, lambda: None) == 16
    assert (budget.rows, budget.halvings) == (16, 2)
