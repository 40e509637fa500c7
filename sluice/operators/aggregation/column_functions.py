"""Computes SQL aggregate functions over many windows at once.

Only functions whose accumulators accept whole columns are computed here. A function that picks,
such as `last` or `max_by`, depends on the order of the records; the other functions do not. None of
the functions can fail for a record. The results are the same as with `Functions`, which adds one
record after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.operators.aggregation.accumulator import WindowAccumulators
from sluice.operators.aggregation.calculation import Calculation, Functions
from sluice.operators.aggregation.number_columns import NumbersTooLargeError
from sluice.operators.aggregation.window_ranges import WindowRanges
from sluice.support.arrays import Integers


@dataclass(frozen=True)
class WindowAggregates:
    """The aggregates of all functions, one for each window."""

    functions: Functions
    by_function: tuple[WindowAccumulators, ...]

    def results(self) -> pa.Array:
        """Return each window's result, as `Functions.result` writes it."""
        texts: list[pa.Array] = []
        for number, of_windows in enumerate(self.by_function):
            results = of_windows.results(partial(self.functions.result_json, number))
            texts.append(pc.fill_null(results, "null"))
        if self.functions.scalar:
            return texts[0]
        if not self.functions.fields:
            return _joined("[", ["" for _ in texts], texts, "]")
        names = [msgspec.json.encode(name).decode() + ":" for name in self.functions.fields]
        return _joined("{", names, texts, "}")

    def aggregates(self, chosen: Integers) -> list[tuple[Any, ...]]:
        """Return the aggregates of the chosen windows, in the form that `Functions` uses."""
        parts = [of_windows.accumulators(chosen) for of_windows in self.by_function]
        return list(zip(*parts, strict=True))


def _joined(begin: str, names: Sequence[str], texts: Sequence[pa.Array], end: str) -> pa.Array:
    """Return JSON objects or lists that contain the texts, each after its name."""
    parts: list[Any] = []
    before = begin
    for name, text in zip(names, texts, strict=True):
        parts += [before + name, text]
        before = ","
    return pc.binary_join_element_wise(*parts, end, "")


@dataclass(frozen=True)
class ColumnFunctions:
    """Computes the functions of an aggregation for many windows at once, from columns."""

    functions: Functions

    @classmethod
    def of(cls, calculation: Calculation, *, in_order: bool) -> Self | None:
        """Return the functions of a calculation.

        Return None if a function needs one record after the other. `in_order` is true if
        `aggregates` gets the order of the records, because functions that pick a value need this
        order.
        """
        if not isinstance(calculation, Functions):
            return None
        for accumulator in calculation.accumulators:
            if not accumulator.takes_columns or (accumulator.picks and not in_order):
                return None
        return cls(calculation)

    @property
    def picks(self) -> bool:
        """Whether any of the functions picks a value by the order of the records."""
        return any(accumulator.picks for accumulator in self.functions.accumulators)

    def aggregates(
        self, values: pa.Array, windows: WindowRanges, order: Integers | None = None
    ) -> WindowAggregates:
        """Return the aggregates of the windows.

        `values`: the values of the sorted records, in the form that `Functions.read` decodes.

        `order`: numbers that increase in the order of the records, needed if a function picks a
        value by this order. Raises NumbersTooLargeError if a sum may be too large.
        """
        by_function: list[WindowAccumulators] = []
        columns = self._arguments(values)
        for accumulator, column in zip(self.functions.accumulators, columns, strict=True):
            by_function.append(accumulator.over_windows(column, windows, order))
        return WindowAggregates(self.functions, tuple(by_function))

    def merge(self, held: Sequence[Any], aggregate: Sequence[Any]) -> Any:
        """Combine a window's aggregate `held` in the state with the `aggregate` of its new records.

        Raises NumbersTooLargeError if a sum has so many digits that the order of additions could
        matter.
        """
        merged: list[Any] = []
        triples = zip(self.functions.accumulators, held, aggregate, strict=True)
        try:
            for accumulator, before, after in triples:
                merged.append(accumulator.merge_unordered(before, after))
        except OverflowError:
            raise NumbersTooLargeError from None
        return tuple(merged)

    def _arguments(self, values: pa.Array) -> list[Sequence[Any]]:
        """Return the arguments of each function."""
        accumulators = self.functions.accumulators
        if not any(accumulator.needs_argument for accumulator in accumulators):
            return [range(len(values))] * len(accumulators)
        rows = [self.functions.read(value) for value in values.to_pylist()]
        return list(zip(*rows, strict=True))
