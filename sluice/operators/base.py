"""The rows, results and outputs of operators."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Coroutine,
    Generator,
    Sequence,
)
from typing import Any, Protocol

import msgspec

from sluice.errors import EngineError
from sluice.values.phrases import counted
from sluice.values.windows import Bounds

LEFT, RIGHT, MOVED = 0, 1, 2
"""The sides of a join. A foreign-key join gets some rows of its left table as `MOVED` (see
`ForeignKeyJoin`)."""
READ = 100
"""The side of the rows of the first table that a processor reads. The processor's other tables have
the next numbers."""
COGROUPED = 10
"""The side of the rows of a cogrouped aggregate's first stream. The other streams have the next
numbers."""
DEFAULT_OUTPUT = "output"
"""The name of an operator's output. Only a processor can have other outputs."""
AHEAD = 3
"""AHEAD + LEFT and AHEAD + RIGHT are the sides of a change that a `TableJoin` gets early.

Both sides of a join may depend on one table. A change of this table reaches one side first. At that
moment, Kafka Streams joins the change with the other side's store, which already contains the
change. To give the same result, a `TableJoin` gets the change of the other side early, with AHEAD.
Later, it gets this change once more, as LEFT or RIGHT, and joins it.
"""


def rejects_record(error: BaseException) -> bool:
    """Return whether an error of an author's code rejects one record. All other errors end the run.

    A MemoryError ends the run, because it depends on the machine: the record may succeed when it is
    read again.
    """
    # `sys.exit()` in a function must reject the record, not end the driver. Ctrl-C must end the
    # driver.
    return isinstance(error, Exception | SystemExit) and not isinstance(error, MemoryError)


def require_run(result: object) -> None:
    """Raise TypeError for a coroutine or a generator, because the author's code has not run yet."""
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        raise TypeError(f"the function returned a {type(result).__name__}, so its code did not run")


def listed_results(step: str, results: Any, count: int, error: type[EngineError]) -> list[Any]:
    """Return the results of a function that takes many values, as a list.

    Raises `error` unless the function has returned a result for each value.
    """
    is_list = isinstance(results, Sequence) and not isinstance(results, str | bytes)
    if is_list and len(results) == count:
        return list(results)
    if is_list:
        returned = counted(len(results), "result")
    else:
        returned = f"a {type(results).__name__}"
    raise error(
        f"{step} gave its function {counted(count, 'value')} and got {returned} back.",
        next_step="Nothing from the batch was published. Return a list with one result per "
        "value, in the order of the values, and run again.",
    )


class Row(msgspec.Struct):
    """An operator's input: a record, or the old or the new value of a table's change."""

    key: str | None
    value: str | None
    """JSON text; None for a table's tombstone or a stream's null value."""
    time: int
    """Event time, ms."""
    before: int
    """The operator's stream time before this row, ms; -1 before the first row (see
    `engine.batch.stream_time`)."""
    after: int
    """The operator's stream time including this row, ms."""
    side: int = LEFT
    """The input of a join: LEFT, RIGHT, MOVED, AHEAD + LEFT or AHEAD + RIGHT.

    Operators with one input use LEFT. The tables that a processor reads have the sides READ, READ +
    1, and so on.
    """
    old: bool = False
    """Whether this row has a table's old value. A table's change consists of one or two rows with
    the same `time`, `before` and `after`: the old value, then the new value."""
    window: Bounds | None = None
    latest_of_sides: tuple[int, int] = (-1, -1)
    """In a join of two streams: their largest event times (left, right), including this row.

    In a cogrouped aggregate: first, the largest event time of all streams before this row; second,
    always -1.
    """
    foreign: str | None = None
    """The record's own key, if `key` is another key. These operators get both keys: the left side
    of a foreign-key join, a stream joined by a mapped key, a stream deduplicated by an id, and an
    aggregate of a grouped table. An aggregate of a stream that has a topic for late records gets
    the record's original value here, as JSON, and sends it to this topic if the record is late. A
    step that sets times or headers gets them here as JSON. A step that applies changes gets the
    kind and the old row of the change."""
    headers: str | None = None
    """The headers of the record that caused the row, as JSON."""


class Receiver(Protocol):
    """Receives the results that a processor forwards."""

    headers: str | None
    """The headers of the next results, as JSON: the current row's headers, unless the operator sets
    other headers."""

    @property
    def cause(self) -> int:
        """A number that identifies the record or timer that caused the current row.

        The number does not depend on the batch in which the record is read or the timer fires.
        """

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        to: str = DEFAULT_OUTPUT,
    ) -> None:
        """Send a result to one of the processor's outputs."""


class Output(Receiver, Protocol):
    """Receives the results of an operator."""

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        old: bool = False,
        to: str = DEFAULT_OUTPUT,
        rank: int | None = None,
    ) -> None:
        """Send a result.

        For a table, send the old value (`old=True`) before the new value or the tombstone.

        `to`: only an author's processor has other outputs than the default. If stream time advances
        and results of several keys become due, they are sent in the order of `rank`; its default is
        the time at which the result was due.
        """

    def count(self, reason: str, number: int = 1) -> None:
        """Count the row as dropped: `null_key`, `null_value`, `duplicate`, `no_window` or `late`.

        Except for `late`, the row then has no effect: it changes no state and has no result. A row
        is counted as `late` once for each window for which it is late. `restarted` counts windows
        whose earlier records the row replaces (see `WindowedAggregate`). `expired` counts a table's
        records that had already expired.
        """

    def send_late(self) -> None:
        """Mark the current row as late for all of its windows: it then has no effect.

        Send it to the operator's topic for late records, if any.
        """

    def hold(self) -> None:
        """Buffer further results until `release` sends them or `reject` discards them."""

    def release(self) -> None:
        """Send the results buffered since `hold`."""

    def reject(
        self,
        error: BaseException,
        key: str | None,
        value: str | None,
        time: int,
        timer: str = "",
        window: Bounds | None = None,
    ) -> None:
        """Discard the results since `hold`, and reject the current row or the key's timer `timer`.

        `value` is the step's input, and `window` is the window of a timer's key. Raises EngineError
        if the error or the step's `on_error` ends the run.
        """


class RecordedFailure(Exception):
    """A call has failed in this batch, or its failure was recorded in an earlier batch.

    The exception's text is the complete description of the failure.
    """


class Answered(msgspec.Struct, frozen=True):
    """The answer for one row of an `Asking` operator: a JSON result (None for null) or an error."""

    value: str | None = None
    error: str | None = None


class Asking(Protocol):
    """An operator that calls a service or a database for each row, before it processes the rows.

    The task of a stage records the answers, so a repeated batch or a rebuild makes no calls again.
    """

    rows_at_once: int
    """The number of rows for which calls are made before the answers are recorded."""

    def needs_answer(self, row: Row) -> bool:
        """Return whether a call is needed for the row."""

    def ask(self, rows: Sequence[Row]) -> list[str | BaseException | None]:
        """Make the calls for these rows.

        Returns for each row the answer as JSON (None for null), or the exception that rejects the
        row.
        """

    def send(self, row: Row, answer: Answered, out: Output) -> None:
        """Send the result of a row. `answer` is empty if the row needs no answer."""
