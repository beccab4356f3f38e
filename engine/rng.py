"""Keys of the counter-based random numbers.

A key names *what* is drawn (which run, update, task, member and turn), never *when*: a retried or resumed
episode draws the same numbers, whatever else the process has done meanwhile.
"""

from __future__ import annotations

import hashlib


def derive_key(*parts: int | str) -> int:
    """A 63-bit key from the parts' values, order and types, the same in every process and on every machine.

    Generation passes (run_seed, update, task, member, turn). The result is in [0, 2**63): it fits an int64
    tensor and is a valid environment seed.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise TypeError(f"derive_key takes ints and strings, not {part!r}")
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> 1
