"""Notices that the state of a pipeline grows without a bound, from its size on each of the last days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import pairwise

from sluice.errors import StateGrows
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.state_sizes import DAYS
from sluice.state.remote.opening import sizes_of_shards

_SMALL = 2**30
"""Growth of a state that is smaller than 1 GiB is no failure, because the state of a new pipeline
grows while its windows fill."""


def note_size(ledger: Ledger, pipeline: str, today: date) -> None:
    """Note the size of a pipeline's state today. Record the failure `growth` if it grows, and clear it otherwise.

    Does nothing if the size of a shard is unknown, because its server or database does not answer.
    """
    info = ledger.generations.current(pipeline)
    if info is None:
        return
    # A state server tells the size of its shard, which may be on another host than this process.
    sizes = sizes_of_shards(worker.server or worker.location for worker in info.workers)
    if len(sizes) < len(info.workers):
        return
    ledger.sizes.note(pipeline, today, sum(sizes.values()))
    noted = ledger.sizes.of(pipeline)
    if is_growing(noted):
        first, last = noted[0] / 2**30, noted[-1] / 2**30
        error = StateGrows(f"It has grown on each of the last {DAYS} days, from {first:.1f} to {last:.1f} GiB.")
        ledger.failures.keep(Failure.of(error, pipeline, kind="growth"))
    else:
        ledger.failures.clear(pipeline, "growth")


def is_growing(sizes: Sequence[int]) -> bool:
    """Whether a state grows without a bound, by its sizes on the last days, the oldest first."""
    if len(sizes) < DAYS or sizes[-1] < _SMALL:
        return False
    grows_daily = all(before < after for before, after in pairwise(sizes))
    return grows_daily and sizes[-1] >= 2 * sizes[0]
