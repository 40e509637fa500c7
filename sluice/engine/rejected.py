"""Rows that a step of an ordered job rejected, on their way to the driver, who makes dead letters of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.letters import DEAD_LETTER, header
from sluice.engine.rows import LAST, REJECTED, in_order, offset_of, place_of
from sluice.plan import Job
from sluice.state.model import NO_WINDOW
from sluice.topology import drawing


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


def rejected_letters(job: Job, returned: pa.Table) -> pa.Table:
    """The dead letters of the rows that steps of an ordered job rejected, in order."""
    rows = returned.filter(pc.equal(returned.column("cell"), REJECTED))
    if not rows.num_rows:
        return DEAD_LETTER.empty_table()
    topics = {source.number: source.topic for source in job.streams}
    letters = [_letter(job, topics, row) for row in rows.take(pa.array(in_order(rows))).to_pylist()]
    return pa.Table.from_pylist(letters, DEAD_LETTER)


def _letter(job: Job, topics: Mapping[int, str], row: Mapping[str, Any]) -> dict[str, Any]:
    rejected = msgspec.json.decode(row["value"], type=Rejected)
    return {
        "key": _bytes(row["key"]),
        "value": _bytes(rejected.value),
        "headers": [header(f"sluice.{name}", text) for name, text in _headers(job, topics, row, rejected)],
    }


def _headers(
    job: Job, topics: Mapping[int, str], row: Mapping[str, Any], rejected: Rejected
) -> Iterator[tuple[str, str]]:
    node = job.pipeline.nodes[rejected.node]
    yield "reason", rejected.reason
    yield "detail", rejected.detail
    yield "step", drawing.title(node)
    yield "at", node.at
    if row["key"] is not None:
        yield "key", row["key"]
    if rejected.timer is not None:
        yield "timer", rejected.timer
    if row["sequence"] != LAST:
        source, partition = place_of(row["place"])
        yield "topic", topics[source]
        yield "partition", str(partition)
        yield "offset", str(offset_of(row["place"]))
    if row["time"] is not None:
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
