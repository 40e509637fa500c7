"""Functions of Arrow arrays of dates and times, in UTC, with the same results as in Spark."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_values import Value

PARTS: dict[str, Callable[[Value], Value]] = {
    "Year": pc.year,
    "Quarter": pc.quarter,
    "Month": pc.month,
    "WeekOfYear": pc.iso_week,
    "Day": pc.day,
    "DayOfMonth": pc.day,
    "DayOfYear": pc.day_of_year,
    "DayOfWeek": lambda values: pc.day_of_week(values, count_from_zero=False, week_start=7),
    "weekday": pc.day_of_week,
    "Hour": pc.hour,
    "Minute": pc.minute,
    "Second": pc.second,
}
"""Name of a Spark function → Arrow's function that returns the same part of a time."""


def part(name: str, values: Value) -> Value:
    """Return a part of a time, such as its year."""
    return PARTS[name](values).cast(pa.int32())


def truncate(values: pa.Array, unit: str) -> pa.Array:
    """Return the start of the year, hour or other unit that contains each time."""
    unit = unit.lower()
    if unit in ("year", "quarter", "month", "week", "day"):
        days = values.cast(pa.timestamp("us"))
        return pc.floor_temporal(days, unit=unit).cast(pa.timestamp("us", tz="UTC"))
    micros = {
        "hour": 3_600_000_000,
        "minute": 60_000_000,
        "second": 1_000_000,
        "millisecond": 1_000,
        "microsecond": 1,
    }
    return pc.multiply(units_since_epoch(values, micros[unit]), micros[unit]).cast(values.type)


def units_since_epoch(values: pa.Array, micros: int) -> pa.Array:
    """Return the number of whole units since 1970. A unit has `micros` microseconds."""
    numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    is_null = ~values.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.floor_divide(numbers, micros), pa.int64(), mask=is_null)


def add_days(dates: Value, days: Value) -> Value:
    """Return the dates that are this many days later."""
    return pc.add(dates.cast(pa.int32()), days).cast(pa.date32())


def days_between(later: Value, earlier: Value) -> Value:
    """Return the number of days from the earlier to the later date."""
    return pc.subtract(later.cast(pa.int32()), earlier.cast(pa.int32()))
