"""Figures of many entries: added up within each worker, then over the workers, exactly."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Literal

import msgspec

from sluice.errors import QueryError
from sluice.query.answers import Entry

GROUPINGS = frozenset({"_all", "_key", "_start"})
"""What entries are grouped by beside their fields."""
MOST_GROUPS = 10_000
"""As many groups as one answer may have."""

Order = Literal["group", "entries", "sum", "min", "max"]

_EXACT = Context(prec=100)
_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number", order="sorted")


class Group(msgspec.Struct, frozen=True, array_like=True):
    """What the entries of one group come to. Without a field, or where no entry has it, there are no figures."""

    group: msgspec.Raw
    """The value that the group's entries share, as JSON."""
    entries: int
    sum: Decimal | None
    min: Decimal | None
    max: Decimal | None


@dataclass(slots=True)
class _Sum:
    """A group as it grows."""

    entries: int = 0
    sum: Decimal | None = None
    min: Decimal | None = None
    max: Decimal | None = None

    def add(self, entries: int, total: Decimal | None, least: Decimal | None, most: Decimal | None) -> None:
        self.entries += entries
        if total is None or least is None or most is None:
            return
        self.sum = total if self.sum is None else _EXACT.add(self.sum, total)
        self.min = least if self.min is None or least < self.min else self.min
        self.max = most if self.max is None or most > self.max else self.max


class Groups:
    """Entries added up by group as they come.

    `field` and `group_by` name a field of the value, with points for fields within fields; "" is the value itself.
    `group_by` may also be `_key`, `_start` (of the window, epoch ms), or `_all`, which is one group.
    """

    def __init__(self, field: str, group_by: str) -> None:
        self._field = tuple(field.split(".")) if field else ()
        self._group_by = group_by
        self._found: dict[bytes, _Sum] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Count entries in; QueryError if the field holds no number."""
        for entry in entries:
            value = _decoded(entry)
            number = _number(entry, _at(value, self._field), self._field)
            self._sum(_ENCODER.encode(_group(entry, value, self._group_by))).add(1, number, number, number)

    def merge(self, groups: Iterable[Group]) -> None:
        """Count in what somebody else has added up; QueryError if there are too many groups."""
        for one in groups:
            self._sum(bytes(one.group)).add(one.entries, one.sum, one.min, one.max)

    def found(self, order: Order = "group", limit: int | None = None) -> list[Group]:
        """The groups, sorted by their name or, the largest first, by a figure; groups without it come last."""
        groups = [
            Group(msgspec.Raw(name), one.entries, one.sum, one.min, one.max)
            for name, one in sorted(self._found.items())
        ]
        if order != "group":
            groups.sort(key=lambda one: _rank(getattr(one, order)), reverse=True)
        return groups[:limit]

    def _sum(self, name: bytes) -> _Sum:
        found = self._found.get(name)
        if found is None:
            if len(self._found) == MOST_GROUPS:
                raise QueryError(f"There are more than {MOST_GROUPS:,} groups.", next_step="Group by another field.")
            found = self._found[name] = _Sum()
        return found


def figure(entry: Entry, field: str) -> Decimal | None:
    """The number in a field of an entry; None without the field, or if it is null. QueryError if it is no number."""
    names = tuple(field.split(".")) if field else ()
    return _number(entry, _at(_decoded(entry), names), names)


def largest(entries: list[Entry], field: str, limit: int, *, smallest: bool = False) -> list[Entry]:
    """The entries with the largest figures, or the smallest; equal ones by key and window."""
    sign = 1 if smallest else -1
    return heapq.nsmallest(
        limit, entries, key=lambda one: (sign * (figure(one, field) or Decimal(0)), one.key, one.window_start)
    )


def _decoded(entry: Entry) -> Any:
    try:
        return _DECODER.decode(entry.value)
    except RecursionError:
        raise QueryError(f"The value of key {entry.key[:100]!r} is nested too deeply to be combined.") from None


def _group(entry: Entry, value: Any, group_by: str) -> Any:
    named = {"_all": None, "_key": entry.key, "_start": entry.window_start}
    return named[group_by] if group_by in named else _at(value, tuple(group_by.split(".")) if group_by else ())


def _number(entry: Entry, found: Any, names: tuple[str, ...]) -> Decimal | None:
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | Decimal):
        raise QueryError(f"{'.'.join(names) or 'The value'!r} of key {entry.key[:100]!r} is no number.")
    return Decimal(found)


def _at(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _rank(value: Decimal | int | None) -> tuple[bool, Decimal]:
    return value is not None, Decimal(value or 0)
