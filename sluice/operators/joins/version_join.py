"""Joins each record of a stream with a table's row as it was at the record's time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluice.operators.base import RIGHT, Output, Row
from sluice.operators.joins.by_key import joined
from sluice.operators.lateness import last_forgotten
from sluice.operators.operator import Moment, Operator, Releasing

Version = tuple[int, str | None]
"""The time from which a version of a row is valid, and the row's value. None means that the row was
deleted at this time."""


class HeldRecord(msgspec.Struct, array_like=True):
    """A record of the stream that waits for the table's versions up to the record's time."""

    time: int
    value: str
    headers: str | None


class Versions(msgspec.Struct, array_like=True):
    """A key's versions, the earliest first, and its waiting records in the order of arrival."""

    versions: list[Version] = []
    held: list[HeldRecord] = []


class VersionedJoin(Operator[Versions]):
    """Joins each record of a stream with the table's version as of the record's time.

    The history reaches `history_ms` back from the largest event time of the table's records. The
    latest version never expires. With `grace_ms`, a record is held back until stream time is
    `grace_ms` past the time of the record. Of several waiting records, the earliest is joined
    first.
    """

    state_type: Any = Versions

    def __init__(
        self, how: Literal["inner", "left"], history_ms: int, grace_ms: int | None
    ) -> None:
        self.how = how
        self.history_ms = history_ms
        self.grace_ms = grace_ms

    def new_state(self) -> Versions:
        return Versions()

    def process(self, state: Versions, row: Row, out: Output) -> None:
        stream_time, table_time = row.latest_of_sides
        if row.side == RIGHT:
            if row.key is None:
                out.count("null_key")
            elif not row.old:
                self._add_version(state.versions, (row.time, row.value), table_time)
        # As in other joins with a table, drop stream records without a value. Records without a key
        # match nothing.
        elif row.value is None or (row.key is None and self.how == "inner"):
            out.count("null_value" if row.key is not None else "null_key")
        elif (
            self.grace_ms is not None
            and row.time > stream_time - self.grace_ms
            and row.key is not None
        ):
            state.held.append(HeldRecord(row.time, row.value, row.headers))
        else:
            self._send(state, row.key, row.time, row.value, table_time, out)

    @property
    @override
    def releasing(self) -> Releasing:
        return Releasing()

    @override
    def release(self, state: Versions, key: str, due: int, moment: Moment, out: Output) -> None:
        self.close(state, key, due, out, moment.latest_of_sides)

    def due(self, state: Versions) -> int | None:
        if not state.held or self.grace_ms is None:
            return None
        return min(record.time for record in state.held) + self.grace_ms

    def close(
        self,
        state: Versions,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Join the waiting records that are due, the earliest first."""
        if self.grace_ms is None:
            return
        last_due = closed - self.grace_ms
        due = sorted((record for record in state.held if record.time <= last_due), key=_time_of)
        state.held = [record for record in state.held if record.time > last_due]
        for record in due:
            out.headers = record.headers
            self._send(state, key, record.time, record.value, latest_of_sides[RIGHT], out)

    def is_empty(self, state: Versions) -> bool:
        return not state.versions and not state.held

    def _add_version(self, versions: list[Version], version: Version, table_time: int) -> None:
        at = bisect_left(versions, version[0], key=_start_of)
        if at < len(versions) and versions[at][0] == version[0]:
            versions[at] = version
        else:
            versions.insert(at, version)
        # Keep the last version from before the history, because it is valid when the history
        # begins.
        first = (
            bisect_right(versions, last_forgotten(table_time, self.history_ms) + 1, key=_start_of)
            - 1
        )
        if first > 0:
            del versions[:first]

    def _send(
        self,
        state: Versions,
        key: str | None,
        time: int,
        value: str,
        table_time: int,
        out: Output,
    ) -> None:
        right = self._as_of(state.versions, time, table_time)
        if right is not None or self.how == "left":
            out.emit(key, joined(value, right), time)

    def _as_of(self, versions: list[Version], time: int, table_time: int) -> str | None:
        """Return the value that was valid at a time.

        If the time is before the history, only the latest version counts, because it never expires.
        """
        if not versions:
            return None
        if time <= last_forgotten(table_time, self.history_ms):
            start, value = versions[-1]
            if start <= time:
                return value
            return None
        at = bisect_right(versions, time, key=_start_of)
        if at:
            return versions[at - 1][1]
        return None


def _start_of(version: Version) -> int:
    return version[0]


def _time_of(record: HeldRecord) -> int:
    return record.time
