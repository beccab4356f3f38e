"""The frozen reference model of the KL term: in SEED the Stage-1 model.

An update needs it for one forward pass. With `offload` its weights rest in CPU memory and are on the device
during that pass only: all of them in one process, a layer at a time where FSDP2 shards them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from sprout.engine import parallel
from sprout.engine.forest import Turn
from sprout.engine.model import Decoder
from sprout.engine.scoring import score_turns


class Reference:
    """Scores turns under `decoder`, which nobody trains.

    offload   keep the weights in CPU memory; for a sharded decoder `parallel.shard_model` has seen to it
    """

    def __init__(self, decoder: Decoder, offload: bool = False) -> None:
        self._decoder = decoder
        moves = offload and parallel.world_size() == 1
        self._resting = [(p, _in_cpu_memory(p.detach())) for p in decoder.parameters()] if moves else []
        self._leave_device()

    def score(self, turns: Sequence[Turn], *, temperature: float, rows_per_micro_batch: int) -> list[Turn]:
        """The turns with `ref_logprob`."""
        students = [replace(turn, teacher_context=None) for turn in turns]
        with self.on_device() as decoder:
            scores = score_turns(
                decoder, students, temperature=temperature, rows_per_micro_batch=rows_per_micro_batch
            )
        return [replace(turn, ref_logprob=l_ref) for turn, (l_ref, _) in zip(turns, scores, strict=True)]

    @contextmanager
    def on_device(self) -> Iterator[Decoder]:
        """The decoder, ready to compute inside the block."""
        try:
            for parameter, weight in self._resting:
                parameter.data = weight.to(self._decoder.device, non_blocking=True)
            yield self._decoder
        finally:
            self._leave_device()

    def _leave_device(self) -> None:
        """Nothing is copied back: the weights in CPU memory have stayed as they are."""
        for parameter, weight in self._resting:
            parameter.data = weight


def _in_cpu_memory(weight: Tensor) -> Tensor:
    """`weight` where a GPU can fetch it without a further copy."""
    return weight.cpu().pin_memory() if weight.is_cuda else weight.cpu()
