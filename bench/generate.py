"""Generation: tokens per second of ours against transformers' `generate`, at batch 64; 32 for a real model.

    python -m sprout.bench.generate --json

Two workloads: multi-turn episodes in groups that share a prompt, which is what rollouts are, and one turn for
each of as many different prompts. All sequences have equal lengths, so transformers pads nothing and waits
for nobody; it computes every turn from the start, as its users do, or keeps its cache between turns. Where
the processor has no units for a half precision, transformers in float32 is a peer too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from sprout.bench.backends import by_backend
from sprout.bench.episodes import WARM_UP, Episodes, EpisodeShape
from sprout.bench.measure import Ceilings, Timing, interleaved
from sprout.bench.models import as_transformers
from sprout.bench.table import Row
from sprout.engine.generator import Generator, Session
from sprout.engine.model import Decoder
from sprout.engine.rng import derive_key
from sprout.kernels.linear import multiplies

OURS, PEER, PEER_CACHED = "sprout", "transformers", "transformers, cache kept"
WIDE = ", float32"  # after a peer's name: in another precision than ours
AGREEMENT = 0.9  # of the greedy episodes; in fp32 near-ties between logits may fall either way

Ids = NDArray[np.int64]
Play = Callable[[float], Ids]


@dataclass(frozen=True)
class GenerateResult:
    """Times by provider name for one workload."""

    shape: EpisodeShape
    timings: dict[str, Timing]
    ceilings: Ceilings

    def tokens_per_s(self, provider: str) -> float:
        return self.shape.sampled_tokens / self.timings[provider].median

    def speedup(self, peer: str) -> float:
        return self.timings[OURS].speedup_over(self.timings[peer])

    def speedups(self, suffix: str = "") -> Row:
        """Over every peer that ran."""
        names = {"": PEER, "_cache_kept": PEER_CACHED}
        return {
            f"speedup_vs_hf{kind}{precision}{suffix}": self.speedup(peer + after)
            for kind, peer in names.items()
            for precision, after in (("", ""), ("_float32", WIDE))
            if peer + after in self.timings
        }

    def by_backend(self, suffix: str = "") -> Row:
        """Ours on its other backends, where they were asked for."""
        names = [name for name in self.timings if name.startswith(f"{OURS}, ")]
        return {
            f"tokens_per_s{suffix}_{name.removeprefix(f'{OURS}, ')}": self.tokens_per_s(name)
            for name in names
        }

    def rows(self, workload: str) -> list[Row]:
        """A table row per provider."""
        return [
            {
                "workload": workload,
                "provider": name,
                "median_s": t.median,
                "p20_s": t.p20,
                "p80_s": t.p80,
                "sampled_tokens": self.shape.sampled_tokens,
                "tokens_per_s": self.tokens_per_s(name),
                "speedup": self.speedup(name),
            }
            for name, t in self.timings.items()
        ]


def measure_generate(
    decoder: Decoder, shape: EpisodeShape, rounds: int, backend: str | None = None
) -> GenerateResult:
    """Check that all providers agree on greedy episodes, which also warms them up, then time sampling.

    `backend` is what ours runs on; None is its default, and "all" adds a provider for every other one. In
    half precision near-ties are everywhere, so there nothing is compared, and shorter episodes warm up.
    """
    providers = make_providers(decoder, shape, backend)
    if decoder.dtype == torch.float32:
        check_greedy(providers)
    else:
        for play in make_providers(decoder, WARM_UP, backend).values():
            play(1.0)
    runs = {name: partial(play, 1.0) for name, play in providers.items()}
    return GenerateResult(shape, *interleaved(runs, rounds, decoder.device, decoder.dtype))


def make_providers(decoder: Decoder, shape: EpisodeShape, backend: str | None = None) -> dict[str, Play]:
    """Functions from a temperature to whole episodes [B, length]; a kept cache matters with several turns."""
    episodes = Episodes.random(shape, decoder.config.vocab_size)
    generator = Generator(decoder, stop_id=[], cache_tokens=shape.episodes * (shape.length + 32))
    ours: Play = partial(play_ours, generator, episodes)
    providers: dict[str, Play] = by_backend(OURS, ours, backend, decoder.device, decoder.dtype)
    for after, dtype in peer_precisions(decoder):
        model = as_transformers(decoder, dtype)
        model.generation_config.eos_token_id = None
        providers[PEER + after] = partial(play_transformers, model, episodes, keep_cache=False)
        if shape.turns > 1:
            providers[PEER_CACHED + after] = partial(play_transformers, model, episodes, keep_cache=True)
    return providers


def peer_precisions(decoder: Decoder) -> list[tuple[str, torch.dtype]]:
    """(what follows a peer's name, its dtype): ours, and float32 where a user would rather take that."""
    slow = decoder.device.type == "cpu" and not multiplies(decoder.dtype)
    return [("", decoder.dtype), *([(WIDE, torch.float32)] if slow else [])]


def check_greedy(providers: dict[str, Play], agreement: float = AGREEMENT) -> None:
    """Assert that this share of the greedy episodes are the same tokens for every provider."""
    expected = providers[OURS](0.0)
    for name, play in providers.items():
        same = float((play(0.0) == expected).all(axis=1).mean())
        assert same >= agreement, f"{name}: only {same:.0%} of the greedy episodes equal ours"


def play_ours(generator: Generator, episodes: Episodes, temperature: float) -> Ids:
    """All episodes at once; each continues as soon as its own turn is complete."""
    shape = episodes.shape
    sessions = [generator.open(prompt) for prompt in episodes.prompt]
    state = {session: (index, 0) for index, session in enumerate(sessions)}

    def submit(session: Session) -> None:
        key = derive_key("bench", *state[session])
        generator.submit(session, max_new_tokens=shape.action, key=key, temperature=temperature)

    for session in sessions:
        submit(session)
    while generator.busy:
        for completion in generator.step():
            index, turn = state[completion.session]
            if turn + 1 < shape.turns:
                completion.session.extend(episodes.observation[index, turn])
                state[completion.session] = (index, turn + 1)
                submit(completion.session)
    ids = np.stack([session.ids for session in sessions])
    for session in sessions:
        generator.close(session)
    return ids


@torch.inference_mode()
def play_transformers(model: Any, episodes: Episodes, temperature: float, *, keep_cache: bool) -> Ids:
    """All episodes in one batch, turn by turn; with `keep_cache` a turn computes only what is new."""
    ids = torch.from_numpy(episodes.prompt).to(model.device)
    options: dict[str, Any] = {"max_new_tokens": episodes.shape.action, "pad_token_id": 0}
    options |= (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    )
    if keep_cache:
        options["past_key_values"] = DynamicCache(config=model.config)
    for turn in range(episodes.shape.turns):
        if turn:
            ids = torch.cat([ids, torch.from_numpy(episodes.observation[:, turn - 1]).to(ids.device)], dim=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # transformers 5 renames the argument on its way
            ids = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return ids.cpu().numpy()


if __name__ == "__main__":
    import typer

    from sprout.bench.cli import generate

    typer.run(generate)
