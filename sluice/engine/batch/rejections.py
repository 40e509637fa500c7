"""Rejections of records, rows and timers for which a step failed, and errors that end the run.

`dead_letters` turns rejections into dead letters.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from sluice.engine.batch.row_schemas import REJECTED, sorted_indices
from sluice.engine.batch.side_outputs import Collected
from sluice.errors import RecordFailed, error_text
from sluice.operators.base import RecordedFailure
from sluice.values.sql_text import struct_json

LONGEST_DETAIL = 2_000
"""Maximum length of a detail, because an error's text may repeat a value of any size."""


class Rejected(msgspec.Struct, omit_defaults=True):
    """The `value` of a row whose target is `row_schemas.REJECTED`.

    The row's other columns contain the key, the time, the window and the origin.
    """

    node: int
    """Number of the step's node in the pipeline."""
    detail: str
    """The error, such as `ZeroDivisionError: division by zero`."""
    value: str | None = None
    """The step's input value, as JSON text."""
    timer: str | None = None
    """Name of the rejected timer, whose time is in the row; None for a record."""
    reason: str = "processing"


def describe_error(error: BaseException) -> str:
    """Return an error on one line: `ZeroDivisionError: division by zero`.

    Never raises, even if the error's `__str__` does.
    """
    if isinstance(error, RecordedFailure):
        return str(error)
    # An author's exception may itself raise an error when it is turned into text. `error_text`
    # returns a text even for such an exception.
    name, text = type(error).__name__, error_text(error)
    if not text:
        return name[:LONGEST_DETAIL]
    return " ".join(f"{name}: {text}".split())[:LONGEST_DETAIL]


def step_error(step: str, key: str | None, detail: str, timer: str = "") -> RecordFailed:
    """Return the error that ends the run when a step with `on_error="fail"` fails."""
    return RecordFailed(
        f"{step} failed for {subject_of(key, timer)}: {detail}.",
        next_step=(
            "Nothing from the batch was published. Correct the step and run again, or let the run "
            'continue without such records: on_error="dead_letter".'
        ),
    )


def run_ending_error(caller: str, error: BaseException, subject: str) -> RecordFailed:
    """Return the error that ends the run if an author's function fails and no record is at fault.

    `caller` names the step, or another place that calls the function; `subject` names the record or
    timer.
    """
    *_, innermost = traceback.extract_tb(error.__traceback__)
    place = f"{Path(innermost.filename).name}:{innermost.lineno}, in {innermost.name}"
    if isinstance(error, MemoryError):
        advice = "Use less memory in the function, or give the machine more, and run again."
    else:
        advice = (
            "This exception ends the run, because it is not the fault of a record. Correct the "
            "function, and run again."
        )
    return RecordFailed(
        f"{caller} failed for {subject}: {describe_error(error)} ({place}).",
        next_step=f"Nothing from the batch was published. {advice}",
    )


def subject_of(key: str | None, timer: str = "") -> str:
    """Return the record or timer for which a step was called, for a message."""
    if timer:
        return f"timer {timer!r} of key {key!r}"
    return f"key {key!r}"


RejectedRow = Mapping[str, Any]
"""A rejected row: `key`, `value` (JSON of `Rejected`), and the time, window and origin if known."""


def rejected_rows(collected: Collected) -> list[RejectedRow]:
    """Return the rejected rows that tasks have returned, sorted by position."""
    pages = [*collected.changes([REJECTED])]
    if not pages:
        return []
    rows = pa.concat_tables(pages)
    in_order: list[RejectedRow] = rows.take(pa.array(sorted_indices(rows))).to_pylist()
    return in_order


def rejection_sql(node: int, error: str, value: str) -> str:
    """Return SQL for the JSON of a `Rejected`.

    `error` and `value` are SQL for the message and for the value's JSON.
    """
    return struct_json(f"named_struct('node', {node}, 'detail', {error}, 'value', {value})")
