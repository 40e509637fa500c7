"""Epochs, with which shards, tables and the ledger keep replaced writers from writing.

A writer takes a higher epoch than the previous writer. A shard or a table remembers the highest
epoch that it has seen, and refuses writers with a lower one. A database may lose its newest
commits, for example by a fail-over to a replica that lagged. Then it no longer knows its newest
epoch, and the next writer continues from an older epoch. Therefore an epoch also contains a random
number: two writers never have the same epoch, even if both have counted to the same number.
"""

from __future__ import annotations

import secrets

_RANDOM_BITS = 32


def next_epoch(newest: int) -> int:
    """Return an epoch higher than `newest`, which is 0 if there is no earlier epoch.

    No other call returns the same epoch.
    """
    count = newest >> _RANDOM_BITS
    return (count + 1) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
