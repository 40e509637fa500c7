"""Checks the arguments of `call` and `lookup`, which ask a service or a database about records."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sluice.errors import TopologyError, sentence
from sluice.operators.encoding import Declared
from sluice.topology.durations import Duration, milliseconds, milliseconds_if_given
from sluice.topology.graph import Graph
from sluice.values.call_parameters import CallPolicy, LookedUpTable
from sluice.values.sink_tables import CONNECTION_NAME, TABLE_NAME

_MOST_CONCURRENT = 1_000


def call_policy(
    where: str,
    *,
    concurrency: int,
    timeout: Duration,
    retries: int,
    backoff: Duration,
    keep: Duration | None,
) -> CallPolicy:
    """Return the call policy of a step.

    Raises TopologyError for values of wrong types or out of range.
    """
    require_whole(where, "retries", retries, 0)
    require_whole(where, "concurrency", concurrency)
    if concurrency > _MOST_CONCURRENT:
        raise TopologyError(
            f"{where}: concurrency={concurrency} must be at most {_MOST_CONCURRENT}.",
            next_step=f"Write concurrency={_MOST_CONCURRENT}, or less.",
        )
    timeout_ms, backoff_ms = milliseconds(timeout), milliseconds(backoff)
    require_whole(where, "timeout in ms", timeout_ms)
    require_whole(where, "backoff in ms", backoff_ms, 0)
    keep_ms = milliseconds_if_given(keep)
    if keep_ms is not None:
        require_whole(where, "keep in ms", keep_ms)
    return CallPolicy(concurrency, timeout_ms, retries, backoff_ms, keep_ms)


def looked_up_table(
    where: str,
    table: str,
    connection: str,
    column: str,
    columns: tuple[str, ...],
    *,
    staleness: Duration,
    cache: int,
) -> LookedUpTable:
    """Return the table in which a step looks records up.

    Raises TopologyError for names that no database accepts.
    """
    for what, name, pattern, example in (
        ("table", table, TABLE_NAME, "shop.customers"),
        ("connection", connection, CONNECTION_NAME, "warehouse"),
    ):
        if not (isinstance(name, str) and pattern.fullmatch(name)):
            raise TopologyError(
                f"{where}: {name!r} is not a valid name of a {what}.",
                next_step=f'Write for example "{example}".',
            )
    if not column.isidentifier():
        raise TopologyError(
            f"{where}: {column!r} is not the name of a column.",
            next_step='Name the table\'s column with the keys: column="id".',
        )
    require_whole(where, "cache", cache)
    staleness_ms = milliseconds(staleness)
    require_whole(where, "staleness in ms", staleness_ms, 0)
    return LookedUpTable(table, connection, column, columns, staleness_ms, cache)


def answers_name(
    pipeline: Graph, where: str, name: str | None, function: Callable[..., Any]
) -> str:
    """Return the name under which a function's answers are recorded: by default, its own name.

    Raises TopologyError if the function has no name, or if another step has the name.
    """
    own = getattr(inspect.unwrap(function), "__name__", "<none>")
    if name is None and own.startswith("<"):
        raise TopologyError(
            f"{where}: the function has no name under which its answers can be recorded.",
            next_step='Name the answers, such as answers="scores", or do not record them: '
            "keep=None.",
        )
    name = own if name is None else name
    pipeline.claim("answers", name)
    return name


def fallback_json(where: str, value: Any, returns: Any) -> str:
    """Return the JSON of `value`, which replaces a failed call's result.

    Raises TopologyError if `value` is not of the type `returns`.
    """
    if value is None:
        return "null"
    try:
        return Declared(returns).json(value)
    except Exception as error:
        raise TopologyError(
            f"{where}: otherwise={value!r} is not of the type that returns= declares: "
            f"{sentence(error)}",
            next_step="Give a value of that type, or None.",
        ) from None


def require_whole(where: str, name: str, value: Any, least: int = 1) -> None:
    """Raise TopologyError unless `value` is a whole number, at least `least`."""
    if type(value) is not int or value < least:
        raise TopologyError(
            f"{where}: {name} is {value!r}, but must be a whole number of at least {least}.",
            next_step=f"Give {name} a larger value.",
        )
