"""The times at which the rows of a table expire, as authors declare them."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.errors import TopologyError
from sluice.topology import arguments
from sluice.topology.durations import Duration, milliseconds
from sluice.topology.expressions import type_of
from sluice.values.expiry import Expiry, ExpiryClock

_NUMBERS = ("BIGINT", "INT", "SMALLINT", "TINYINT")


def expiry_of(
    where: str,
    at: str | None,
    after: Duration | None,
    clock: ExpiryClock,
    types: Mapping[str, str],
) -> Expiry | None:
    """Return when rows with columns of these types expire; None if they do not.

    `at` is valid SQL over the columns.

    Raises TopologyError if both `at` and `after` are given, or `at` is not a time.
    """
    arguments.require_choice(where, "expiry_clock", clock, ExpiryClock)
    if at is None and after is None:
        if clock != "event":
            raise TopologyError(
                f"{where}: expiry_clock= needs expires_at= or expires_after=.",
                next_step="Add one of them, or leave expiry_clock= out.",
            )
        return None
    if at is None:
        assert after is not None
        after_ms = milliseconds(after)
        arguments.require_at_least(where, "expires_after", after_ms, 1)
        return Expiry(None, None, after_ms, clock)
    if after is not None:
        raise TopologyError(
            f"{where}: rows cannot have both expires_at= and expires_after=.",
            next_step="Leave one of them out.",
        )
    kind = type_of(at, types)
    if kind.startswith("TIMESTAMP"):
        return Expiry(at, f"unix_millis({at})", None, clock)
    if kind in _NUMBERS:
        return Expiry(at, at, None, clock)
    raise TopologyError(
        f"{where}: expires_at={at!r} is {kind or 'of an unknown type'}, not a time.",
        next_step="Use a field of type datetime, or of type int in milliseconds since 1970, "
        "or CAST(... AS TIMESTAMP).",
    )


def require_no_versions(where: str, history_ms: int | None, expiry: Expiry | None) -> None:
    """Raise TopologyError if a versioned table also has an expiry."""
    if history_ms is not None and expiry is not None:
        raise TopologyError(
            f"{where}: the rows of a versioned table cannot expire.",
            next_step="Leave out versioned=, or expires_at= and expires_after=.",
        )
