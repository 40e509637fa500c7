"""Timers of the wall clock and tables in PostgreSQL, whose contents follow from the records without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg

from sluice import Context, Pipeline, PostgresTable, Record, Timer
from tests.engine.shop import Names

if TYPE_CHECKING:
    from tests.chaos.episode import Episode

CONNECTION = "chaos"


class Reminders:
    """Sets a timer for each record, which is due at once, and forwards the record's time when the timer fires."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.context.schedule(str(record.time), record.time, clock="wall")

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, timer.name)


def add_extras(
    pipeline: Pipeline, sources: dict[str, Any], names: Names, *, with_tables: bool
) -> None:
    """Timers for the records of one source; with tables, one by key and two that only grow."""
    fired = sources["l"].process(Reminders, returns=str).output
    fired.to(names("fired"), value=str)
    if with_tables:
        fired.to(PostgresTable("fired", connection=CONNECTION))
        sources["l"].filter("n IS NOT NULL").select("n", "g").to(
            PostgresTable("log", connection=CONNECTION)
        )
        sources["t"].to(PostgresTable("latest", connection=CONNECTION, key="id"))


def different_extras(episode: Episode) -> Iterator[str]:
    """What differs after all records have been read. Timestamps are unique."""
    readable = [one for one in episode.sent if not one.is_malformed]
    stream = [one for one in readable if one.source == "l"]
    times = Counter(str(one.input["ts"]) for one in stream if one.input["key"] is not None)
    fired = Counter(
        (message.value() or b"").decode() for message in episode.messages(episode.names("fired"))
    )
    yield from _difference("timers", fired, times)
    if not episode.settings.connections:
        return
    (url,) = episode.settings.connections.values()
    with psycopg.connect(url, autocommit=True) as database:
        found = {
            "fired": database.execute("SELECT value FROM fired").fetchall(),
            "log": database.execute('SELECT "_offset", n, g FROM log').fetchall(),
            "latest": database.execute("SELECT id, n, g FROM latest").fetchall(),
        }
    log = [(one.offset, one.input["value"]) for one in stream]
    latest = {one.input["key"]: one.input["value"] for one in readable if one.source == "t"}
    wanted = {
        "fired": times.elements(),
        "log": [
            (offset, *value.values()) for offset, value in log if value and value["n"] is not None
        ],
        "latest": [(key, *value.values()) for key, value in latest.items() if value is not None],
    }
    yield from _difference(
        "table fired", Counter(text for (text,) in found["fired"]), Counter(wanted["fired"])
    )
    for table in ("log", "latest"):
        yield from _difference(f"table {table}", Counter(found[table]), Counter(wanted[table]))


def _difference(what: str, found: Counter[Any], wanted: Counter[Any]) -> Iterator[str]:
    if found != wanted:
        yield f"{what}: {dict(wanted - found)} are missing, {dict(found - wanted)} are too many"
