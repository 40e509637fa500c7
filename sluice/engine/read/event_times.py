"""Checks event times: a valid time is neither before 1970 nor too far in the future."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.read.decode import ValueDecoder
from sluice.values.utc_times import AFTER_LAST, utc_datetime

Problems = list[tuple[str, str] | None]
"""For each record, the reason and the detail of its rejection; None if it is not rejected."""


def invalid_times(decoder: ValueDecoder, times: pa.Array, clock: int) -> Problems:
    """Return, for each event time, the reason why it is invalid, or None.

    The list is empty if all times are valid.

    `clock` is the time at which the batch began, in epoch ms.
    """
    earliest, latest = earliest_valid_time(decoder), clock + decoder.source.max_future_skew_ms
    if not len(times):
        return []
    # Usually all times are valid, and comparing the smallest and the largest time shows this
    # quickly.
    if (
        not times.null_count
        and pc.min(times).as_py() >= earliest
        and pc.max(times).as_py() <= latest
    ):
        return []
    return [_invalid_time(time, latest, decoder.columns.assumed_ms) for time in times.to_pylist()]


_EARLIEST_ASSUMED = 100_000_000_000
"""March 1973, in epoch ms. If the pipeline does not declare the unit of a time, milliseconds are
assumed, and times before March 1973 are invalid. Otherwise, a present time in seconds would be
taken for a time in January 1970."""


def earliest_valid_time(decoder: ValueDecoder) -> int:
    return 0 if decoder.columns.assumed_ms is None else _EARLIEST_ASSUMED


def _invalid_time(time: int | None, latest: int, assumed_ms: str | None) -> tuple[str, str] | None:
    if time is None:
        return "event_time", "the event time is null"
    if time < 0:
        return "event_time", f"the event time, {time} ms, is before 1970"
    if assumed_ms is not None and time < _EARLIEST_ASSUMED:
        return (
            "event_time",
            f"the event time, {time}, would be before March 1973 in milliseconds: "
            f'declare its unit with event_time=epoch_s("{assumed_ms}"), epoch_ms or epoch_us',
        )
    if time > latest:
        return (
            "future",
            f"the event time, {_shown(time)}, is after {_shown(latest)}, "
            "the latest time allowed when the record was read",
        )
    return None


def _shown(time: int) -> str:
    """Format a time for a message: in UTC, or in epoch ms if Python cannot represent it."""
    if time >= AFTER_LAST:
        return f"{time} ms"
    return utc_datetime(time).replace(tzinfo=None).isoformat(" ", "milliseconds") + " UTC"
