"""Rows that steps behind operators have rejected. The driver converts them to dead letters."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import DEAD_LETTER, LONGEST_DETAIL, Header, escaped_headers, header, iso_time
from sluice.engine.batch.row_schemas import REJECTED, has_origin, in_order, offset_of, partition_of
from sluice.engine.batch.side_outputs import BatchStats
from sluice.errors import EngineError, error_text
from sluice.plan import Job, Step
from sluice.state.model import NO_WINDOW
from sluice.values.sql_text import struct_json


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
HeadersAt = Callable[[Sequence[Place]], Mapping[Place, Sequence[Header]]]
"""Reads the headers of records; leaves out those that the topics no longer have."""


def describe(error: BaseException) -> str:
    """An error on one line: `ZeroDivisionError: division by zero`. Never raises, even if the error's `__str__` does."""
    text = error_text(error)
    text = " ".join(f"{type(error).__name__}: {text}".split()) if text else type(error).__name__
    return text[:LONGEST_DETAIL]


def step_failed(step: str, key: str | None, detail: str, timer: str = "") -> EngineError:
    """The error that ends the run when a step with `on_error="fail"` fails for a record or a timer."""
    return EngineError(
        f"{step} failed for {subject_of(key, timer)}: {detail}.",
        next_step="Nothing from the batch was published. Correct the step and run again, or let the run continue "
        'without such records: on_error="dead_letter".',
    )


def run_ended(where: str, error: BaseException, subject: str) -> EngineError:
    """The error that ends the run when an author's function raises an error that rejects no record.

    `where` is the step, or another place that calls the function; `subject` is what the function was called for.
    """
    *_, innermost = traceback.extract_tb(error.__traceback__)
    place = f"{Path(innermost.filename).name}:{innermost.lineno}, in {innermost.name}"
    return EngineError(
        f"{where} failed for {subject}: {describe(error)} ({place}).",
        next_step="Nothing from the batch was published. "
        + (
            "Use less memory in the function, or give the machine more, and run again."
            if isinstance(error, MemoryError)
            else "This exception ends the run, because it is no error of a record. Correct the function, and run again."
        ),
    )


def subject_of(key: str | None, timer: str = "") -> str:
    """The record or timer for which a step was called, for a message."""
    return f"timer {timer!r} of key {key!r}" if timer else f"key {key!r}"


Row = Mapping[str, Any]
"""A rejected row: `key`, `value` (JSON of `Rejected`), and its time, window and origin if known."""

"""The name of the side output that counts rejected rows by step and by partition."""


def rejected_rows(spooled: pa.Table) -> list[Row]:
    """The sorted rejected rows that tasks have spooled."""
    rows = spooled.filter(pc.equal(spooled.column("group_id"), REJECTED))
    return rows.take(pa.array(in_order(rows))).to_pylist() if rows.num_rows else []


@dataclass(frozen=True)
class StepLetter:
    """The dead letter of a row on which a step failed."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    place: Place | None
    """Where its record is. The change of a store and a timer have no record."""


def settle(job: Job, rows: Iterable[Row]) -> tuple[list[StepLetter], BatchStats]:
    """The dead letters of rejected rows, and the number of failures of each step.

    Raises EngineError for the first row of a step with `on_error="fail"`.
    """
    topics = {source.number: source.topic for source in job.streams}
    stats, letters = BatchStats(), []
    for row in rows:
        rejected = msgspec.json.decode(row["value"], type=Rejected)
        step = job.pipeline.steps[rejected.node]
        if step.on_error == "fail":
            raise step_failed(str(step), row["key"], rejected.detail)
        name = f"failed/{step.name}"
        stats.counts[name] = stats.counts.get(name, 0) + 1
        place: Place | None = None
        if has_origin(row.get("sequence")) and rejected.timer is None:
            source, partition = partition_of(row["origin"])
            place = topics[source], partition, offset_of(row["origin"])
            partition_counts = stats.by_partition.setdefault(f"{topics[source]}-{partition}", {})
            partition_counts[name] = partition_counts.get(name, 0) + 1
        if step.on_error == "dead_letter":
            headers = [header(f"sluice.{name}", text) for name, text in _headers(step, place, row, rejected)]
            letters.append(StepLetter(_bytes(row["key"]), _bytes(rejected.value), headers, place))
    return letters, stats


def with_own_headers(letters: Sequence[StepLetter], headers_at: HeadersAt) -> pa.Table:
    """The dead letters as records, each with the headers that its record has in its topic first.

    Only the first `MOST_READ` are completed, because each record is read again.
    """
    places = [letter.place for letter in letters if letter.place is not None]
    own = headers_at(places[:MOST_READ]) if places else {}
    rows = [
        {
            "key": letter.key,
            "value": letter.value,
            "headers": [*escaped_headers(own.get(letter.place, ()) if letter.place else ()), *letter.headers],
        }
        for letter in letters
    ]
    return pa.Table.from_pylist(rows, DEAD_LETTER)


def _headers(step: Step, place: Place | None, row: Row, rejected: Rejected) -> Iterator[tuple[str, str]]:
    """Names and texts of the headers."""
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
        yield "timestamp", iso_time(row["time"])
    if row["window_start"] not in (None, NO_WINDOW):
        yield "window_start", str(row["window_start"])
        yield "window_end", str(row["window_end"])


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def rejection(node: int, error: str, value: str) -> str:
    """SQL for the JSON of a `Rejected`. `error` and `value` are SQL for the message and for the value's JSON."""
    return struct_json(f"named_struct('node', {node}, 'detail', {error}, 'value', {value})")
