"""What every ordered operator is: records of one key in, in order, with the key's state; results out.

No Spark here, no database: an operator sees one row after the other and changes the state it is given. Whoever hosts it
(`engine.hosts`) brings the rows in order, loads the states of the keys at hand and keeps them with the snapshot.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec

Window = tuple[int, int]
"""Start and end in ms; whether the end belongs to the window depends on its kind."""

LEFT, RIGHT = 0, 1

FAILURES = (Exception, SystemExit)
"""What an author's code may raise for a record. KeyboardInterrupt and the like are about the process."""


class Row(msgspec.Struct):
    """One record, or one half of a table's change, as it gets to an operator."""

    key: str | None
    value: str | None
    """JSON text; None is a tombstone, or the null value of a stream's record."""
    time: int
    """Event time, ms."""
    before: int
    """Stream time of the operator just before this row, ms; -1 before the first (`clock` says which rows move it)."""
    after: int
    """Stream time with this row."""
    side: int = LEFT
    """Which input of a join: LEFT (also the only one) or RIGHT."""
    old: bool = False
    """Takes back a table's old value. A table's change is up to two rows: the old value, then the new one, at the
    same time, with the same `before` and `after`."""
    window: Window | None = None
    reached: tuple[int, int] = (-1, -1)
    """Of a join of two streams: the largest event time of the left and of the right stream, with this row."""
    foreign: str | None = None
    """The record's own key where `key` is another: of a foreign-key join's left side, of a stream joined by a mapped
    key, of a stream whose duplicates are dropped by an id."""


class Output(Protocol):
    """Where an operator's results go."""

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Window | None = None,
        old: bool = False,
        to: str = "output",
    ) -> None:
        """Send a result on: a record of a stream; of a table the old value (`old`), then the new one or a tombstone.

        Only an author's processor has other outputs (`to`) than the one.
        """

    def count(self, reason: str) -> None:
        """Count the row at hand as dropped: `late`, `null_key`, `null_value`, `duplicate`."""

    def hold(self) -> None:
        """Something begins that may fail: what is sent from here on may be withdrawn."""

    def release(self) -> None:
        """It has succeeded: what was sent since `hold` stays."""

    def reject(self, error: BaseException, key: str | None, value: str | None, time: int, timer: str = "") -> None:
        """It has failed: withdraw what was sent since `hold`, and reject the row, or the key's timer, that it was.

        `value` is what the step was given. Raises EngineError where the author wants the run to end then.
        """


S = TypeVar("S")


class Operator(Protocol[S]):
    """One ordered operator. `state_type` is what msgspec keeps a key's state as; states are changed in place.

    A row whose key is null comes with a state from `begin` that nobody keeps.
    """

    state_type: Any
    drops_null_values: bool
    """Whether rows with a null value leave stream time where it is; those with a null key always do."""

    def begin(self) -> S:
        """The state of a key that has none."""

    def process(self, state: S, row: Row, out: Output) -> None:
        """Take in one row; rows of a key come in order. One that fails is rejected, and leaves the state as it was."""

    def due(self, state: S) -> int | None:
        """The stream time at which `close` has something to do for this state; None if nothing is waited for."""

    def close(self, state: S, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)) -> None:
        """Stream time has reached `closed` everywhere: send what waited for it, forget what cannot change any more.

        `reached`: of a join of two streams, as in `Row`.
        """

    def is_empty(self, state: S) -> bool:
        """Whether the state need not be kept."""


class Timeless:
    """What an operator has in which nothing waits for stream time."""

    def due(self, state: Any) -> int | None:
        """Never."""
        return None

    def close(self, state: Any, key: str | None, closed: int, out: Output, reached: tuple[int, int] = (-1, -1)) -> None:
        """There is nothing to send and nothing to forget."""
