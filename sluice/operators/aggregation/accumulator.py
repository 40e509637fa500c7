"""The interface of aggregate functions. All can add one row at a time, and some also whole columns.

`add` returns a new accumulator and leaves the old one unchanged, so that a failed record can be
undone. Accumulators that may be large are modified in place instead, and their changes can be
undone. Null arguments are ignored, except that `count` without an argument counts rows.

`over_windows` computes the accumulators of many windows at once, from columns. The results are
the same as if `add` were called for each record in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from typing_extensions import override

from sluice.errors import TopologyError
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.support.arrays import Integers

WriteResult = Callable[[Any], str]
"""Writes the result of an accumulator as JSON."""


class WindowAccumulators(Protocol):
    """One function's accumulators, one for each window."""

    def results(self, write: WriteResult) -> pa.Array:
        """Return the results as JSON, or null."""

    def accumulators(self, chosen: Integers) -> list[Any]:
        """Return the accumulators of the chosen windows."""


@dataclass(frozen=True)
class ListedAccumulators(WindowAccumulators):
    """Accumulators whose results are computed one by one."""

    listed: Sequence[Any]

    def results(self, write: WriteResult) -> pa.Array:
        return pa.array([write(accumulator) for accumulator in self.listed], pa.string())

    def accumulators(self, chosen: Integers) -> list[Any]:
        return [self.listed[number] for number in chosen.tolist()]


class Accumulator:
    """The operations of one aggregate function.

    The function's accumulated value, the `accumulator`, has the msgspec type `kind`.
    """

    takes_columns = False
    """Whether `over_windows` is implemented."""
    needs_argument = True
    """Whether the result depends on the argument's values."""
    picks = False
    """Whether the function picks the value of one record, depending on the order of the records."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def new_accumulator(self) -> Any:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        raise NotImplementedError

    def subtract(self, accumulator: Any, value: Any) -> Any:
        raise TopologyError(f"{type(self).__name__} cannot subtract a table's old value.")

    def merge(self, earlier: Any, later: Any) -> Any:
        """Combine the accumulators of two sessions that are merged."""
        return self.add(earlier, later)

    def merge_unordered(self, held: Any, later: Any) -> Any:
        """Combine the state's accumulator with the accumulator of new records.

        Raises NumbersTooLargeError or OverflowError if the order of the records could matter.
        """
        return self.merge(held, later)

    def copy(self, accumulator: Any) -> Any:
        """Return an independent copy for another window."""
        return accumulator

    def result(self, accumulator: Any) -> Any:
        """Return the function's result as SQL defines it."""
        return accumulator

    def keep_changes(self) -> None:
        """Make in-place changes final."""

    def undo_changes(self) -> None:
        """Undo in-place changes since `keep_changes`."""

    def over_windows(
        self, column: Sequence[Any], windows: WindowRanges, order: Integers | None
    ) -> WindowAccumulators:
        """Return the accumulators of windows.

        `column`: the function's argument in each of the sorted records.

        `order`: numbers that increase in the order of the records, needed if `picks` is true.

        Raises NumbersTooLargeError if a sum may be too large.
        """
        raise NotImplementedError


class InPlace(Accumulator):
    """Changes its accumulator in place, because a copy may be large. Can undo the changes."""

    def __init__(self, kind: Any) -> None:
        super().__init__(kind)
        self.changes: list[Callable[[], object]] = []
        """Functions that undo the changes since `keep_changes`, in the order of the changes."""

    @override
    def keep_changes(self) -> None:
        self.changes.clear()

    @override
    def undo_changes(self) -> None:
        while self.changes:
            # Undo the last change first, because a later change may depend on an earlier change.
            self.changes.pop()()
