"""Notices that a pipeline's state grows without a bound, from its size on each of the last days."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from itertools import pairwise

from sluice.errors import StateError, StateGrows
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.state_sizes import DAYS
from sluice.state.model import GenerationInfo
from sluice.state.remote.opening import open_shard, state_size
from sluice.values.phrases import listed, size_text

_SMALL = 2**30
"""Growth of a state that is smaller than 1 GiB is not a failure, because a new pipeline's state
grows while its windows fill."""


def note_size(ledger: Ledger, pipeline: str, today: date) -> None:
    """Note the size of a pipeline's state today.

    Record the failure `growth` if the state grows without a bound, and clear the failure otherwise.

    Do nothing if the size of a shard is unknown, because its server or database does not answer.
    """
    info = ledger.generations.current(pipeline)
    if info is None:
        return
    size = state_size(info)
    if size is None:
        return
    ledger.sizes.note(pipeline, today, size)
    noted = ledger.sizes.of(pipeline)
    if is_growing(noted):
        first, last = size_text(noted[0]), size_text(noted[-1])
        detail = f"The state has grown on each of the last {DAYS} days, from {first} to {last}."
        error = StateGrows(f"{detail} {_largest_part(info)}".rstrip())
        ledger.failures.keep(Failure.of(error, pipeline, kind="growth"))
    else:
        ledger.failures.clear(pipeline, "growth")


def _largest_part(info: GenerationInfo) -> str:
    """Name the store or the operator with the most rows; empty if a shard cannot be read."""
    # The module imports the planner, which Airflow need not load to parse the DAG.
    from sluice.engine.run.compatibility import number_of

    rows = Counter[str]()
    operators: dict[int, str] = {}
    for name, definition in info.operators.items():
        operators[number_of(definition)] = name
    with suppress(StateError):
        for worker in info.workers:
            with open_shard(worker.server or worker.location) as shard:
                counts = shard.row_counts()
            for group, count in counts.groups.items():
                rows[_stores_of_group(info, group)] += count
            for number, count in counts.operators.items():
                rows[f"operator {operators.get(number, number)}"] += count
        for largest, most in rows.most_common(1):
            return f"Of its {rows.total():,} rows, {most:,} belong to the {largest}."
    return ""


def _stores_of_group(info: GenerationInfo, group: int) -> str:
    stores = [store.name for store in info.stores if store.group_id == group]
    if len(stores) == 1:
        return f"store {stores[0]}"
    return f"stores {listed(stores)}"


def is_growing(sizes: Sequence[int]) -> bool:
    """Return whether a state grows without a bound.

    `sizes` are its sizes on the last days, the oldest first.
    """
    if len(sizes) < DAYS or sizes[-1] < _SMALL:
        return False
    grows_daily = all(before < after for before, after in pairwise(sizes))
    return grows_daily and sizes[-1] >= 2 * sizes[0]
