"""Rows that a step of an ordered job rejected, on their way to the driver, who makes dead letters of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import DEAD_LETTER, header
from sluice.engine.batch.rows import LAST, REJECTED, in_order, offset_of, place_of
from sluice.engine.batch.side_outputs import Facts
from sluice.errors import EngineError
from sluice.plan import Job, Step
from sluice.state.model import NO_WINDOW


class Rejected(msgspec.Struct, omit_defaults=True):
    """`value` of a row whose target is `rows.REJECTED`; its key, time, window and place are the row's own."""

    node: int
    """Number of the step's node in the pipeline."""
    detail: str
    """What was wrong: `ZeroDivisionError: division by zero`."""
    value: str | None = None
    """The value as the step was given it, as JSON text."""
    timer: str | None = None
    """Name of the timer that was rejected, whose time is the row's; None if it was a record."""
    reason: str = "processing"


_LONGEST = 2_000


def said(error: BaseException) -> str:
    """What an error says, on one line, whatever an author's exception does: `ZeroDivisionError: division by zero`."""
    try:
        text = str(error)
    except Exception:
        text = "(it cannot be shown)"
    text = " ".join(f"{type(error).__name__}: {text}".split()) if text else type(error).__name__
    return text.encode(errors="replace").decode()[:_LONGEST]


def ends_the_run(step: str, key: str | None, detail: str, timer: str = "") -> EngineError:
    """The error of a step that fails for a record, or a timer, and is to end the run then."""
    of = f"the timer {timer!r} of " if timer else ""
    return EngineError(
        f"{step} failed for {of}the key {key!r}: {detail}.",
        next_step="Nothing of the batch is visible. Correct the step and run again, or have it go on without "
        'such records: on_error="dead_letter".',
    )


Row = Mapping[str, Any]
"""A rejected row: `key`, `value` (JSON of `Rejected`), and what is known of its time, window and place."""

SETTLED = "stage-rejected"
"""The name of the facts that say how many rows were rejected, and of which partitions' records."""


def rejected_rows(returned: pa.Table) -> list[Row]:
    """The rows that steps of an ordered job rejected, in order."""
    rows = returned.filter(pc.equal(returned.column("group_id"), REJECTED))
    return rows.take(pa.array(in_order(rows))).to_pylist() if rows.num_rows else []


def settle(job: Job, rows: Iterable[Row]) -> tuple[pa.Table, Facts]:
    """The dead letters of rejected rows, and how often each step failed.

    Raises EngineError for the first row of a step that is to end the run.
    """
    topics = {source.number: source.topic for source in job.streams}
    facts, letters = Facts(), []
    for row in rows:
        rejected = msgspec.json.decode(row["value"], type=Rejected)
        step = job.pipeline.steps[rejected.node]
        if step.on_error == "fail":
            raise ends_the_run(str(step), row["key"], rejected.detail)
        name = f"failed/{step.name}"
        facts.counts[name] = facts.counts.get(name, 0) + 1
        if (place := _place(topics, row)) is not None:
            of_place = facts.by_place.setdefault(f"{place[0]}-{place[1]}", {})
            of_place[name] = of_place.get(name, 0) + 1
        if step.on_error == "dead_letter":
            headers = [header(f"sluice.{name}", text) for name, text in _headers(step, place, row, rejected)]
            letters.append({"key": _bytes(row["key"]), "value": _bytes(rejected.value), "headers": headers})
    return pa.Table.from_pylist(letters, DEAD_LETTER), facts


def _place(topics: Mapping[int, str], row: Row) -> tuple[str, int, int] | None:
    """Topic, partition and offset of the record that a row comes of; None of a timer, and of a store's change."""
    if row.get("sequence") in (None, LAST):
        return None
    source, partition = place_of(row["place"])
    return topics[source], partition, offset_of(row["place"])


def _headers(step: Step, place: tuple[str, int, int] | None, row: Row, rejected: Rejected) -> Iterator[tuple[str, str]]:
    yield "reason", rejected.reason
    yield "detail", rejected.detail
    yield "step", step.title
    yield "at", step.at
    if row["key"] is not None:
        yield "key", row["key"]
    if rejected.timer is not None:
        yield "timer", rejected.timer
    if place is not None:
        yield from zip(("topic", "partition", "offset"), map(str, place), strict=True)
    if row.get("time") is not None:
        yield "timestamp", _iso(row["time"])
    if row["window_start"] not in (None, NO_WINDOW):
        yield "window_start", str(row["window_start"])
        yield "window_end", str(row["window_end"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _iso(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
