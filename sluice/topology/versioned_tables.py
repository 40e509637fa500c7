"""How far back versioned tables reach, and how long joining streams wait for late versions."""

from __future__ import annotations

from sluice.errors import TopologyError
from sluice.topology import arguments, nodes
from sluice.topology.durations import Duration, milliseconds
from sluice.values.phrases import duration_text


def history_in_ms(where: str, versioned: Duration | None) -> int | None:
    """Return how far back the versions of a table reach, in ms.

    Raises TopologyError if `versioned` is negative.
    """
    if versioned is None:
        return None
    history_ms = milliseconds(versioned)
    arguments.require_at_least(where, "versioned", history_ms, 0)
    return history_ms


def grace_in_ms(where: str, grace: Duration | None, table: nodes.Node) -> int | None:
    """Return how long a stream's records wait for a table's versions.

    Raises TopologyError if the table has no versions, or forgets them before the records are
    joined.
    """
    if grace is None:
        return None
    grace_ms, history_ms = milliseconds(grace), table.history
    arguments.require_at_least(where, "grace", grace_ms, 0)
    if history_ms is None:
        raise TopologyError(
            f"{where}: grace= needs a versioned table.",
            next_step='Write for example table(..., versioned="1 hour"), or leave grace= out.',
        )
    if history_ms < grace_ms:
        raise TopologyError(
            f"{where}: the grace is {duration_text(grace_ms)}, "
            f"but the table's versions reach back only {duration_text(history_ms)}.",
            next_step=f"Set versioned= to at least {duration_text(grace_ms)}.",
        )
    return grace_ms
