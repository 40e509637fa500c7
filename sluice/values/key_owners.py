"""Decides which worker owns a key, and therefore which shard has the key's state.

The state of all pipelines is divided by this rule, so the rule must never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import crc32


def owner(key: str, workers: int) -> int:
    """Return the worker that owns `key`, computed like Spark SQL's `pmod(crc32(key), workers)`."""
    return crc32(key.encode()) % workers


def key_hashes(keys: Iterable[bytes]) -> Iterator[int]:
    """Yield each key's hash. The remainder of the hash by the number of workers is the owner."""
    return map(crc32, keys)
