"""An operator's stream time: the largest event time that it has seen in a partition, row by row.

Late rows move it like any other. What is dropped because it is null does not, except in a join of two streams.
"""

from __future__ import annotations

from sluice.operators.base import LEFT


class Clock:
    """`before` and `after` of an operator's rows, in the order in which they come; `after` is kept from batch to batch."""

    def __init__(self, *, drops_null_values: bool = False, after: int = -1) -> None:
        self.drops_null_values = drops_null_values
        self.before = self.after = after

    @property
    def closed(self) -> int:
        """What `close` is told at the end of a snapshot."""
        return self.after

    def see(self, key: str | None, value: str | None, time: int, side: int = LEFT) -> None:
        """Take in the next row."""
        self.before = self.after
        if key is not None and (value is not None or not self.drops_null_values):
            self.after = max(self.after, time)


class JoinClock:
    """The same for a join of two streams, and `reached` of its rows.

    Here every row moves stream time. But unmatched records come out only with a row that has a key and a value and is
    not out of order, so `before` is the stream time of the last such row before this one.
    """

    def __init__(self, *, after: int = -1, closed: int = -1, reached: tuple[int, int] = (-1, -1)) -> None:
        self.before, self.after, self.reached = closed, after, reached
        self.closed = closed
        """What `close` is told at the end of a snapshot, and `before` of the next row; kept as `after` and `reached` are."""

    def see(self, key: str | None, value: str | None, time: int, side: int = LEFT) -> None:
        """Take in the next row."""
        self.before = self.closed
        self.after = max(self.after, time)
        if key is None or value is None:
            return
        left, right = self.reached
        self.reached = (max(left, time), right) if side == LEFT else (left, max(right, time))
        if time == self.after:
            self.closed = time
