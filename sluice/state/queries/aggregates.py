"""Aggregates entries by group, exactly. Results of several workers can be merged."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import msgspec

from sluice.errors import QueryError
from sluice.state.model import EntryId
from sluice.state.queries.entries import Entry
from sluice.values.field_paths import names_of
from sluice.values.partial_results import add_up, larger, smaller

GROUPINGS = frozenset({"_all", "_key", "_start"})
"""The values of `group_by` that are not fields."""
_MAX_GROUPS = 10_000
"""Limit of the number of groups in a result."""

Order = Literal["group", "entries", "sum", "min", "max"]

_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number", order="sorted")
_NUMBER_TYPES = frozenset({int, Decimal})
"""The types of JSON's numbers. The type of true and false is a subclass of int, so `isinstance`
would take these values for numbers."""


class Group(msgspec.Struct, frozen=True, array_like=True):
    """The aggregates of one group.

    `sum`, `min` and `max` are None if no entry of the group has a number in the field.
    """

    group: msgspec.Raw
    """The value that the group's entries share, as JSON."""
    entries: int
    sum: Decimal | None
    min: Decimal | None
    max: Decimal | None


@dataclass(slots=True)
class _Sums:
    """The running aggregates of one group."""

    entries: int = 0
    sum: Decimal | None = None
    min: Decimal | None = None
    max: Decimal | None = None

    def add(
        self,
        entries: int,
        total: Decimal | None,
        smallest: Decimal | None,
        greatest: Decimal | None,
    ) -> None:
        self.entries += entries
        self.sum = add_up(self.sum, total)
        self.min = smaller(self.min, smallest)
        self.max = larger(self.max, greatest)


class Aggregates:
    """Aggregates entries by group, incrementally.

    `field` and `group_by` are paths in the value, such as `customer.city`; the path "" is the value
    itself. If `field` is "", values that are not numbers are counted but not summed. `group_by` may
    also be `_key`, `_start` (the window's start, epoch ms), or `_all`, which makes a single group.
    """

    def __init__(self, field: str, group_by: str) -> None:
        self._field = names_of(field)
        self._group_by = group_by
        self._groups: dict[bytes, _Sums] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries.

        Raise QueryError if the field of an entry is not a number, or if there are too many groups.
        """
        for entry in entries:
            value = _decode_value(entry)
            number = None
            # If there is no field, the entries are counted even if their values are not numbers.
            if self._field or type(value) in _NUMBER_TYPES:
                number = _number(entry, _field_value(value, self._field), self._field)
            group = _ENCODER.encode(_group(entry, value, self._group_by))
            self._sums(group).add(1, number, number, number)

    def merge(self, groups: Iterable[Group]) -> None:
        """Add the aggregates of another worker. Raise QueryError if there are too many groups."""
        for group in groups:
            self._sums(bytes(group.group)).add(group.entries, group.sum, group.min, group.max)

    def groups(self, order: Order = "group", limit: int | None = None) -> list[Group]:
        """Return the groups, sorted by name, or by an aggregate in descending order.

        Groups without the aggregate come last.
        """
        groups: list[Group] = []
        for name, sums in sorted(self._groups.items()):
            groups.append(Group(msgspec.Raw(name), sums.entries, sums.sum, sums.min, sums.max))
        if order != "group":
            groups.sort(key=lambda group: _rank(getattr(group, order)), reverse=True)
        return groups[:limit]

    def _sums(self, name: bytes) -> _Sums:
        sums = self._groups.get(name)
        if sums is None:
            if len(self._groups) == _MAX_GROUPS:
                raise QueryError(
                    f"The result has more than {_MAX_GROUPS:,} groups.",
                    next_step="Group by another field.",
                )
            sums = self._groups[name] = _Sums()
        return sums


def number_at(entry: Entry, field: str) -> Decimal | None:
    """Return the number in an entry's field; None if the field is missing or null.

    Raise QueryError for any other value.
    """
    names = names_of(field)
    return _number(entry, _field_value(_decode_value(entry), names), names)


def largest(entries: list[Entry], field: str, limit: int, *, smallest: bool = False) -> list[Entry]:
    """Return the entries with the largest numbers, or the smallest.

    Ties are sorted by key and window.
    """

    def order(entry: Entry) -> tuple[Decimal, EntryId]:
        number = number_at(entry, field) or Decimal(0)
        # `copy_negate` keeps all digits of a number, while `-` and multiplication round to 28
        # digits.
        return number if smallest else number.copy_negate(), entry.id

    return heapq.nsmallest(limit, entries, key=order)


def _decode_value(entry: Entry) -> Any:
    try:
        return _DECODER.decode(entry.value)
    except RecursionError:
        raise QueryError(
            f"The value of key {entry.key[:100]!r} is nested too deeply to be aggregated.",
            next_step="Restrict the query to other keys, by a prefix or by first and last keys.",
        ) from None


def _group(entry: Entry, value: Any, group_by: str) -> Any:
    match group_by:
        case "_all":
            return None
        case "_key":
            return entry.key
        case "_start":
            return entry.window_start
        case _:
            return _field_value(value, names_of(group_by))


def _number(entry: Entry, value: Any, names: tuple[str, ...]) -> Decimal | None:
    if value is None:
        return None
    if type(value) not in _NUMBER_TYPES:
        field = repr(".".join(names)) if names else "The value"
        next_step = ""
        if isinstance(value, dict):
            next_step = f"Choose a field: {', '.join(map(str, value))}."
        raise QueryError(
            f"{field} of key {entry.key[:100]!r} is not a number.", next_step=next_step
        )
    return Decimal(value)


def _field_value(value: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _rank(value: Decimal | int | None) -> tuple[bool, Decimal]:
    return value is not None, Decimal(value or 0)
