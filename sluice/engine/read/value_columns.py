"""The columns of decoded values, and their event times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import error_text
from sluice.plan import Source
from sluice.sql.arrow_to_json import json_object, json_values
from sluice.sql.arrow_types import arrow_type
from sluice.values import contract_values, contracts
from sluice.values.epochs import Unit
from sluice.values.json_limits import LONGEST_NUMBER
from sluice.values.record_metadata import TEXT_FIELD, WALL_CLOCK

T = TypeVar("T")

ARROW_TYPES = (Decimal, datetime, date, bytes)
"""The Python types whose values Arrow takes unchanged."""
Values: TypeAlias = Sequence[Any] | pa.RecordBatch
"""Decoded values: an object for each value, or a column for each field, without nulls (see
`JsonColumns`)."""
_EXACT = Context(prec=LONGEST_NUMBER, traps=[Inexact])


@dataclass(frozen=True)
class ValueColumns:
    """Converts the values of one source to columns."""

    source: Source

    @cached_property
    def field_types(self) -> dict[str, Any]:
        """The fields of the values, each with its declared type."""
        return contracts.field_types(self.source.value_class)

    @cached_property
    def _readers(self) -> dict[str, Callable[[Any], Any]]:
        """For each field, the function that reads it from a value."""
        return {
            name: contracts.field_reader(self.source.value_class, name)
            for name in self.source.types
        }

    @cached_property
    def _by_name(self) -> frozenset[str]:
        """The fields whose values need `plain_data`, because msgspec converts them differently."""
        kinds = {TEXT_FIELD: self.source.value_type}
        if self.source.is_object:
            kinds = self.field_types
        names: set[str] = set()
        for name, kind in kinds.items():
            if contract_values.needs_plain_data(kind):
                names.add(name)
        return frozenset(names)

    def column(self, values: Values, name: str) -> pa.Array:
        """Return a field of the values as an Arrow column.

        Raises ValueError, which names the field, if a value does not fit the column's type. A time
        without a zone is in the pipeline's zone. If the time occurs twice, because clocks were
        turned back, it is the earlier occurrence.
        """
        if isinstance(values, pa.RecordBatch):
            return values.column(name)
        try:
            return self.column_of_fields(self._fields(values, name), name)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            path = "$"
            if self.source.is_object:
                path = f"$.{name}"
            reason, _, _ = error_text(error).partition("\n")
            raise ValueError(f"{path}: {reason}") from error

    def column_of_fields(self, fields: list[Any], name: str) -> pa.Array:
        """Like `column`, for the values of one field."""
        sql = self.source.types[name]
        is_nested = "<" in sql
        plain = fields
        if sql != "TIMESTAMP" and (is_nested or _has_enums(fields)):
            if is_nested and name in self._by_name:
                plain = contract_values.plain_data(fields)
            plain = msgspec.to_builtins(plain, builtin_types=ARROW_TYPES)
        if self.source.zone != "UTC" and "TIMESTAMP" in sql:
            plain = _in_zone(plain, ZoneInfo(self.source.zone))
        try:
            return pa.array(plain, arrow_type(sql))
        except pa.ArrowInvalid:
            # Arrow counts a decimal's trailing zeros as digits, and raises this error if there are
            # too many.
            if "DECIMAL" not in sql:
                raise
            return pa.array(_without_zeros(plain), arrow_type(sql))

    def json(self, values: Sequence[Any]) -> pa.Array:
        """Encode valid values, without nulls, as JSON in the form of the stores of other tables."""
        if not self.source.is_object:
            return json_values(self.column(values, TEXT_FIELD))
        columns: dict[str, pa.Array] = {}
        for name in self.source.types:
            columns[name] = self.column(values, name)
        return json_object(columns)

    def unfit(self, values: Sequence[Any]) -> dict[int, str]:
        """Return errors of fields that do not fit their columns' types, by index of the value."""

        def error_of(some: Sequence[Any]) -> str:
            try:
                for name in self.source.types:
                    self.column(some, name)
            except ValueError as error:
                return str(error)
            return ""

        errors: dict[int, str] = {}
        for place in failing_places(
            len(values), lambda begin, end: not error_of(values[begin:end])
        ):
            if values[place] is not None:
                errors[place] = error_of([values[place]])
        return errors

    def _fields(self, values: Sequence[Any], name: str) -> list[Any]:
        if not self.source.is_object:
            return list(values)
        read = self._readers[name]
        if self.source.keeps_nulls:
            return [None if value is None else read(value) for value in values]
        return [*map(read, values)]

    def event_times(
        self,
        values: Values,
        record_times: pa.Array,
        clock: int,
    ) -> pa.Array:
        """Return the event times in ms: the declared field, or else the record's timestamp.

        The timestamp also replaces a missing value of the field. If the event time is `WALL_CLOCK`,
        every record gets the batch's time, `clock`.
        """
        if self.source.event_time == WALL_CLOCK:
            return pa.repeat(pa.scalar(clock, pa.int64()), len(values))
        if self.source.event_time is None:
            return _milliseconds(record_times)
        column = self.column(values, self.source.event_time)
        if pa.types.is_integer(column.type):
            times = self._numbers_in_ms(column)
        else:
            times = _milliseconds(column)
        # A record without a value, such as a tombstone, has no field with a time, so use its
        # timestamp.
        if self.source.keeps_nulls and not isinstance(values, pa.RecordBatch):
            empty = pa.array([value is None for value in values], pa.bool_())
            times = pc.if_else(empty, _milliseconds(record_times), times)
        return times

    def _numbers_in_ms(self, numbers: pa.Array) -> pa.Array:
        """Numbers in the declared unit as ms, rounded down.

        A number that is too large remains too large.
        """
        match self.source.time_unit:
            case Unit.SECONDS:
                # If the numbers were not limited first, the product of a large number could
                # overflow to a valid time.
                most = (2**63 - 1) // 1000
                keeps_nulls = pc.ElementWiseAggregateOptions(skip_nulls=False)
                at_least = pc.max_element_wise(numbers, -most, options=keeps_nulls)
                limited = pc.min_element_wise(at_least, most, options=keeps_nulls)
                return pc.multiply(limited, 1000)
            case Unit.MICROSECONDS:
                return pc.subtract(pc.divide(numbers, 1000), pc.less(numbers, 0).cast(pa.int64()))
            case _:
                return numbers

    @property
    def assumed_ms(self) -> str | None:
        """The field of the event time if its numbers have no declared unit, and are read as ms."""
        field = self.source.event_time
        if field is None or self.source.time_unit is not None:
            return None
        return field if self.source.types.get(field) == "BIGINT" else None


def without_nulls(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _has_enums(fields: list[Any]) -> bool:
    return any(issubclass(kind, Enum) for kind in set(map(type, fields)))


def _milliseconds(times: pa.Array) -> pa.Array:
    # If the times had a zone, Arrow would look up the zone's offset for each of them, which takes
    # ten times as long as these calls.
    without_zone = times.cast(pa.timestamp("us"))
    return pc.divide(pc.floor_temporal(without_zone, unit="millisecond").cast(pa.int64()), 1000)


def _in_zone(value: Any, zone: ZoneInfo) -> Any:
    """Return the value with `zone` added to every time without a zone, including nested times."""

    def add_zone(scalar: Any) -> Any:
        if isinstance(scalar, datetime) and not scalar.tzinfo:
            return scalar.replace(tzinfo=zone)
        return scalar

    return _changed(value, add_zone)


def _without_zeros(value: Any) -> Any:
    """Return the value with decimals without trailing zeros, which Arrow counts as digits."""

    def strip(scalar: Any) -> Any:
        if isinstance(scalar, Decimal):
            return scalar.normalize(_EXACT)
        return scalar

    return _changed(value, strip)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value with every scalar changed, also in lists and objects."""
    if isinstance(value, list):
        return [_changed(element, change) for element in value]
    if isinstance(value, dict):
        return {name: _changed(element, change) for name, element in value.items()}
    return change(value)


def failing_places(count: int, fits: Callable[[int, int], bool]) -> Iterator[int]:
    """Yield the indices of the wrong values among `count` values.

    `fits(begin, end)` returns whether a range has none. A range with a wrong value is halved: few
    values are wrong, and checking a range costs little more than checking a single value.
    """
    ranges = [(0, count)]
    while ranges:
        begin, end = ranges.pop()
        if begin == end or fits(begin, end):
            continue
        if end - begin == 1:
            yield begin
        else:
            middle = (begin + end) // 2
            ranges += [(middle, end), (begin, middle)]
