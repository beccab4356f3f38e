"""Run by test_ranks.py on every rank: updates of a tiny policy, from one checkpoint to another."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from tiny import random_turns, tiny_decoder

from sprout.engine import checkpoint, parallel
from sprout.engine.generate import generate
from sprout.engine.optimizer import OptimizerConfig, build_optimizer
from sprout.engine.reference import Reference
from sprout.engine.supervised import supervised_loss, supervised_step
from sprout.engine.update import UpdateSettings, policy_update
from sprout.kernels import PolicyLossCoefficients


def batch(step):
    """Turns of unequal length, one of them without a scored token; in step 1 a single turn for all ranks."""
    turns = random_turns(step, count=1 if step == 1 else 9)
    return [replace(turn, mask=np.zeros_like(turn.mask)) if i == 3 else turn for i, turn in enumerate(turns)]


def with_reference(turns, compute, offload):
    """The turns scored by a frozen model, which every rank holds a part of."""
    decoder = tiny_decoder("llama", seed=1, dtype=compute)
    parallel.shard_model(decoder, decoder.model.layers, compute, offload)
    return Reference(decoder, offload).score(turns, temperature=1.0, rows_per_micro_batch=200)


def main(folder, method, dtype, first, last):
    parallel.initialize("cpu")
    compute = getattr(torch, dtype)
    # Without biases: a key bias has gradient 0, and AdamW's step is as large whatever rounding leaves of it.
    decoder = tiny_decoder("llama", dtype=compute).to(parallel.master_dtype(compute))
    parallel.shard_model(decoder, decoder.model.layers, compute)
    optimizer = build_optimizer(decoder, OptimizerConfig(name=method, lr=3e-4, muon_lr=2e-3))
    if first:
        checkpoint.load(checkpoint.step_folder(folder, first), decoder, optimizer)
    coefficients = PolicyLossCoefficients(kl=0.1, entropy=0.01, opd=0.3)
    settings = UpdateSettings(coefficients, rows_per_micro_batch=200, opd_baseline="mean")
    losses = []
    for step in range(first, last):
        turns, offloaded = (with_reference(batch(step), compute, offload) for offload in (False, True))
        for one, two in zip(turns, offloaded, strict=True):
            assert np.array_equal(one.ref_logprob, two.ref_logprob)
        result = policy_update(decoder, optimizer, turns, settings)
        losses += [result.metrics["actor/pg_loss"], result.metrics["seed/opd_loss"]]
        losses.append(float(np.concatenate([scores.logprob for scores in result.scores]).sum()))
        losses.append(supervised_step(decoder, optimizer, batch(step + 10), 200).loss)
        losses.append(supervised_loss(decoder, batch(step + 20), 200))
        with parallel.whole(decoder):
            count = 4 + parallel.rank()  # generation may differ from rank to rank
            (made,) = generate(decoder, [[1, 2, 3]], stop_id=0, max_new_tokens=count, temperature=0.0)
        assert 1 <= len(made.ids) <= count
    checkpoint.save(checkpoint.step_folder(folder, last), decoder, optimizer, {"step": last})
    if parallel.is_main():
        Path(folder, "losses").write_text("\n".join(map(str, losses)))
    parallel.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
