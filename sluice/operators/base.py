"""The contract of ordered operators: the rows of a key come in order, with the key's state; results go to an Output.

An operator is plain Python and knows neither Spark nor a database. Its runner (`engine/ordered/runner.py`) sorts the
rows, loads the states of their keys and stores the changed ones with the snapshot.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

Window = tuple[int, int]
"""Start and end, ms. The end is exclusive for tumbling and hopping windows, inclusive for sessions and sliding ones."""

LEFT, RIGHT = 0, 1

FAILURES = (Exception, SystemExit)
"""Errors of an author's code that concern one record. KeyboardInterrupt and the like concern the whole process."""


class Row(msgspec.Struct):
    """One record, or the old or the new value of a table's change, on its way to an operator."""

    key: str | None
    value: str | None
    """JSON text; None is a table's tombstone or a stream's null value."""
    time: int
    """Event time, ms."""
    before: int
    """Stream time of the operator just before this row, ms; -1 before the first (`stream_time` defines it)."""
    after: int
    """Stream time with this row."""
    side: int = LEFT
    """The input of a join: LEFT or RIGHT. Operators with one input use LEFT."""
    old: bool = False
    """Whether this row withdraws a table's old value. A table's change is up to two rows with the same `time`, `before`
    and `after`: the old value, then the new one."""
    window: Window | None = None
    reached: tuple[int, int] = (-1, -1)
    """In a join of two streams: the largest event times of the left and the right stream, this row included."""
    foreign: str | None = None
    """The record's own key where `key` is a different one: the left side of a foreign-key join, a stream joined by a
    mapped key, a stream deduplicated by an id, a grouped table."""


class Output(Protocol):
    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Window | None = None,
        old: bool = False,
        to: str = "output",
        rank: int | None = None,
    ) -> None:
        """Send a result. For a table, the old value (`old=True`) comes before the new one or the tombstone.

        Only an author's processor has outputs (`to`) besides the default. `rank`: the place of a result among all keys'
        results that stream time releases at once; the time at which it was due if not given.
        """

    def count(self, reason: str) -> None:
        """Count the current row as dropped: `late`, `null_key`, `null_value`, `duplicate`."""

    def hold(self) -> None:
        """Buffer results from here on, until `release` sends or `reject` discards them."""

    def release(self) -> None:
        """Send the results buffered since `hold`."""

    def reject(self, error: BaseException, key: str | None, value: str | None, time: int, timer: str = "") -> None:
        """Discard the results buffered since `hold` and reject the current row, or the key's timer if one is named.

        `value` is the step's input. Raises EngineError if the step's `on_error` ends the run.
        """


S = TypeVar("S")


class Operator(Protocol[S]):
    """An ordered operator. `state_type` is the msgspec type of a key's state; operators change states in place.

    A row with a null key comes with a new state from `begin`, which is not stored.
    """

    state_type: Any

    def begin(self) -> S:
        """Return the state of a key that has none yet."""

    def process(self, state: S, row: Row, out: Output) -> None:
        """Apply one row. A row that fails is rejected and leaves the state unchanged."""

    def due(self, state: S) -> int | None:
        """Stream time at which this state needs `close`; None if it never does."""

    def close(self, state: S, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)) -> None:
        """Send the results that are due at stream time `closed`, and drop state that can no longer change.

        All partitions have reached `closed`. `reached` is that of `Row`, for a join of two streams.
        """

    def is_empty(self, state: S) -> bool:
        """Whether the state need not be stored."""


class Timeless:
    """Mixin for operators in which nothing waits for stream time."""

    def due(self, state: Any) -> int | None:
        return None

    def close(self, state: Any, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)) -> None:
        pass
