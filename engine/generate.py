"""Whole prompts to whole completions, on top of a `Generator`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from sprout.engine.generator import Completion, Generator, Ids, Session
from sprout.engine.model import Decoder
from sprout.engine.rng import derive_key

Progress: TypeAlias = Callable[[int, int], None]


def complete(
    generator: Generator,
    prompts: Sequence[Ids],
    *,
    max_new_tokens: int,
    keys: Sequence[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
    progress: Progress | None = None,
) -> list[Completion]:
    """One turn for each prompt, in the prompts' order; the sessions are closed afterwards.

    keys       one per prompt (see `derive_key`)
    progress   called with (finished, all) whenever some have finished
    """
    waiting = deque(enumerate(zip(prompts, keys, strict=True)))
    live: dict[Session, int] = {}
    results: dict[int, Completion] = {}
    try:
        while waiting or live:
            while waiting and len(live) < generator.max_rows:
                index, (prompt, key) = waiting.popleft()
                live[session := generator.open(prompt)] = index
                generator.submit(
                    session, max_new_tokens=max_new_tokens, key=key, temperature=temperature, top_p=top_p
                )
            finished = generator.step()
            for completion in finished:
                results[live.pop(completion.session)] = completion
                generator.close(completion.session)
            if finished and progress is not None:
                progress(len(results), len(prompts))
    finally:
        for session in live:
            generator.close(session)
    return [results[i] for i in range(len(prompts))]


def generate(
    decoder: Decoder,
    prompts: Sequence[Ids],
    *,
    stop_id: int | Iterable[int],
    max_new_tokens: int,
    seed: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    cache_tokens: int | None = None,
    progress: Progress | None = None,
) -> list[Completion]:
    """`complete` with a generator of its own; prompt i has the key `derive_key(seed, i)`.

    cache_tokens   None: what all prompts need at once, within 1 GiB, and at least the longest turn
    """
    if cache_tokens is None:
        cache_tokens = _cache_tokens(decoder, [len(prompt) + max_new_tokens for prompt in prompts])
    return complete(
        Generator(decoder, stop_id=stop_id, cache_tokens=cache_tokens),
        prompts,
        max_new_tokens=max_new_tokens,
        keys=[derive_key(seed, i) for i in range(len(prompts))],
        temperature=temperature,
        top_p=top_p,
        progress=progress,
    )


def _cache_tokens(decoder: Decoder, lengths: list[int], page_size: int = 16) -> int:
    c = decoder.config
    bytes_per_token = 2 * c.layers * c.kv_heads * c.head_size * decoder.dtype.itemsize
    wanted = [length + page_size for length in lengths]
    return max(min(sum(wanted), 2**30 // bytes_per_token), max(wanted, default=1))
