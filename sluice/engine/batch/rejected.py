"""Rows that steps of an ordered job have rejected. The driver converts them to dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import DEAD_LETTER, LONGEST_DETAIL, error_text, header, iso_time
from sluice.engine.batch.rows import REJECTED, has_origin, in_order, offset_of, partition_of
from sluice.engine.batch.side_outputs import Facts
from sluice.errors import EngineError
from sluice.plan import Job, Step
from sluice.state.model import NO_WINDOW


class Rejected(msgspec.Struct, omit_defaults=True):
    """The `value` of a row whose target is `rows.REJECTED`. The row has the key, time, window and origin."""

    node: int
    """Number of the step's node in the pipeline."""
    detail: str
    """The error, such as `ZeroDivisionError: division by zero`."""
    value: str | None = None
    """The step's input value, as JSON text."""
    timer: str | None = None
    """Name of the rejected timer, whose time is in the row; None for a record."""
    reason: str = "processing"


MOST_READ = 10_000
"""The number of records of a batch whose headers are read again for their dead letters."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""
HeadersAt = Callable[[Sequence[Place]], Mapping[Place, Sequence[Mapping[str, str | bytes | None]]]]
"""Reads the headers of records; leaves out those that the topics no longer have."""


def describe(error: BaseException) -> str:
    """An error on one line: `ZeroDivisionError: division by zero`. Never raises, even if the error's `__str__` does."""
    text = error_text(error)
    text = " ".join(f"{type(error).__name__}: {text}".split()) if text else type(error).__name__
    return text.encode(errors="replace").decode()[:LONGEST_DETAIL]


def step_failed(step: str, key: str | None, detail: str, timer: str = "") -> EngineError:
    """The error that ends the run when a step with `on_error="fail"` fails for a record or a timer."""
    subject = f"timer {timer!r} of key {key!r}" if timer else f"key {key!r}"
    return EngineError(
        f"{step} failed for {subject}: {detail}.",
        next_step="Nothing from the batch was published. Correct the step and run again, or let the run continue "
        'without such records: on_error="dead_letter".',
    )


Row = Mapping[str, Any]
"""A rejected row: `key`, `value` (JSON of `Rejected`), and its time, window and origin if known."""

REJECTED_PART = "stage-rejected"
"""The name of the side output that counts rejected rows by step and by partition."""


def rejected_rows(spooled: pa.Table) -> list[Row]:
    """The sorted rejected rows that tasks have spooled."""
    rows = spooled.filter(pc.equal(spooled.column("group_id"), REJECTED))
    return rows.take(pa.array(in_order(rows))).to_pylist() if rows.num_rows else []


def settle(job: Job, rows: Iterable[Row]) -> tuple[pa.Table, Facts]:
    """The dead letters of rejected rows, and the number of failures of each step.

    Raises EngineError for the first row of a step with `on_error="fail"`.
    """
    topics = {source.number: source.topic for source in job.streams}
    facts, dead_letters = Facts(), []
    for row in rows:
        rejected = msgspec.json.decode(row["value"], type=Rejected)
        step = job.pipeline.steps[rejected.node]
        if step.on_error == "fail":
            raise step_failed(str(step), row["key"], rejected.detail)
        name = f"failed/{step.name}"
        facts.counts[name] = facts.counts.get(name, 0) + 1
        origin: tuple[str, int, int] | None = None
        if has_origin(row.get("sequence")) and rejected.timer is None:  # timers and stores' changes have no origin
            source, partition = partition_of(row["origin"])
            origin = topics[source], partition, offset_of(row["origin"])
            partition_counts = facts.by_partition.setdefault(f"{topics[source]}-{partition}", {})
            partition_counts[name] = partition_counts.get(name, 0) + 1
        if step.on_error == "dead_letter":
            headers = [header(f"sluice.{name}", text) for name, text in _headers(step, origin, row, rejected)]
            dead_letters.append({"key": _bytes(row["key"]), "value": _bytes(rejected.value), "headers": headers})
    return pa.Table.from_pylist(dead_letters, DEAD_LETTER), facts


def with_own_headers(dead_letters: pa.Table, headers_at: HeadersAt) -> pa.Table:
    """The same dead letters of failed steps, each with the headers that its record has in its topic first.

    They include the history of a record that was re-driven. Only the first `MOST_READ` are completed, because each
    record is read again.
    """
    rows = dead_letters.to_pylist()
    places = {number: place for number, row in enumerate(rows) if (place := _place(row["headers"])) is not None}
    found = headers_at([*places.values()][:MOST_READ]) if places else {}
    for number, place in places.items():
        rows[number]["headers"] = [*found.get(place, ()), *rows[number]["headers"]]
    return pa.Table.from_pylist(rows, DEAD_LETTER)


def _place(headers: Iterable[Mapping[str, Any]]) -> Place | None:
    texts = {each["key"]: each["value"].decode() for each in headers}
    topic = texts.get("sluice.topic")
    return None if topic is None else (topic, int(texts["sluice.partition"]), int(texts["sluice.offset"]))


def _headers(
    step: Step, origin: tuple[str, int, int] | None, row: Row, rejected: Rejected
) -> Iterator[tuple[str, str]]:
    """Names and texts of the headers; `origin` is the record's topic, partition and offset."""
    yield "reason", rejected.reason
    yield "detail", rejected.detail
    yield "step", step.title
    yield "at", step.at
    if row["key"] is not None:
        yield "key", row["key"]
    if rejected.timer is not None:
        yield "timer", rejected.timer
    if origin is not None:
        yield from zip(("topic", "partition", "offset"), map(str, origin), strict=True)
    if row.get("time") is not None:
        yield "timestamp", iso_time(row["time"])
    if row["window_start"] not in (None, NO_WINDOW):
        yield "window_start", str(row["window_start"])
        yield "window_end", str(row["window_end"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
