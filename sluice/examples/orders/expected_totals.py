"""The expected results of the orders pipeline, computed with plain `json` and `decimal`.

The computation uses no code of Sluice, so that Sluice's answers can be compared with its results.
The rules:

* A record is valid if it is a JSON object with all fields of an order, each of the right type,
  without duplicates.
* Per order type and location: number of orders and sum of `finalAmount`; the same per 15 s window
  of `orderedDateTime`.
* A record is late for its window if the window's end <= ST - 15 s. ST is the largest event time of
the valid records with the same order type and partition, up to the offset of this record. Late
records count in the running totals but not in the windows.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sluice.kafka.topics import read_topic

WINDOW_MS = 15_000
GRACE_MS = 15_000
_MAX_AHEAD_MS = 3_600_000
TYPES = ("GENERAL", "RESTAURANT")
_SCALE = 2
_FIELDS: dict[str, type] = {
    "orderId": int,
    "locationId": str,
    "finalAmount": Decimal,
    "orderType": str,
    "orderLineItems": list,
    "orderedDateTime": str,
}
_ITEM_FIELDS: dict[str, type] = {"item": str, "count": int, "amount": Decimal}

Total = tuple[int, Decimal]
"""Number of orders and sum of their amounts."""


class _BadError(Exception):
    """The record is not a valid order; the message is the reason."""


@dataclass(frozen=True)
class Order:
    """The fields of an order that the totals need. `time_ms` is the event time."""

    location: str
    kind: str
    amount: Decimal
    time_ms: int


@dataclass
class Totals:
    """The expected contents of the stores, orders by amount, dead letters and late records."""

    running: dict[tuple[str, str], Total] = field(default_factory=dict)
    """(order type, location) → totals."""
    windows: dict[tuple[str, str, int], Total] = field(default_factory=dict)
    """(order type, location, start of the window in ms) → totals."""
    amounts: Counter[tuple[str, str, Decimal]] = field(default_factory=Counter)
    """(order type, location, amount) → number of orders."""
    read: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    late: Counter[str] = field(default_factory=Counter)
    """Order type → number of records that arrived after their window had closed."""
    _stream_times: defaultdict[tuple[int, str], int] = field(
        default_factory=lambda: defaultdict(int), repr=False
    )

    def add(self, value: bytes | None, partition: int, now_ms: int) -> None:
        """Add the next record of a partition.

        `now_ms` is the current time, to reject records from the future.
        """
        self.read += 1
        try:
            order = read(value, now_ms)
        except _BadError as bad:
            self.dead_letters[str(bad)] += 1
            return
        key = (order.kind, order.location)
        self.amounts[*key, order.amount] += 1
        self.running[key] = _plus(self.running.get(key), order.amount)
        stream = (partition, order.kind)
        self._stream_times[stream] = max(self._stream_times[stream], order.time_ms)
        start = order.time_ms - order.time_ms % WINDOW_MS
        if start + WINDOW_MS <= self._stream_times[stream] - GRACE_MS:
            self.late[order.kind] += 1
        else:
            self.windows[*key, start] = _plus(self.windows.get((*key, start)), order.amount)

    def stores(self) -> dict[str, dict[Any, Any]]:
        """Return the eight stores by name: location → value, or (location, window start) → value.

        A count is an int; a revenue is (number of orders, Decimal).
        """
        stores: dict[str, dict[Any, Any]] = {}
        for kind in TYPES:
            prefix = f"{kind.lower()}_orders"
            totals: dict[str, dict[Any, Total]] = {"": {}, "_window": {}}
            for (order_type, location), total in self.running.items():
                if order_type == kind:
                    totals[""][location] = total
            for (order_type, location, start), total in self.windows.items():
                if order_type == kind:
                    totals["_window"][location, start] = total
            for suffix, total_by_key in totals.items():
                counts = {key: count for key, (count, _) in total_by_key.items()}
                stores[f"{prefix}_count{suffix}"] = counts
                stores[f"{prefix}_revenue{suffix}"] = dict(total_by_key)
        return stores


def totals(records: Iterable[tuple[int, bytes | None]]) -> Totals:
    """Return the totals of (partition, value) pairs, which are in offset order by partition."""
    result = Totals()
    now_ms = int(time.time() * 1000)
    for partition, value in records:
        result.add(value, partition, now_ms)
    return result


def totals_of_topic(kafka: dict[str, str], topic: str = "orders") -> Totals:
    """Return the totals of a topic from its beginning to its current end.

    `kafka` has librdkafka settings.
    """
    messages = read_topic(kafka, topic)
    return totals((message.partition() or 0, message.value()) for message in messages)


def read(value: bytes | None, now_ms: int) -> Order:
    """Parse a record's value as an order. Raise _BadError for an invalid order."""
    if not value:
        raise _BadError("null_value" if value is None else "empty_value")
    try:
        order = json.loads(
            value, parse_float=Decimal, object_pairs_hook=_object, parse_constant=_no_number
        )
    except UnicodeDecodeError:
        raise _BadError("not_utf8") from None
    except json.JSONDecodeError:
        raise _BadError("malformed") from None
    _check(order, _FIELDS)
    for item in order["orderLineItems"]:
        _check(item, _ITEM_FIELDS)
        _money(item["amount"])
    if order["orderType"] not in TYPES:
        raise _BadError("contract")
    time_ms = _time(order["orderedDateTime"])
    if time_ms > now_ms + _MAX_AHEAD_MS:
        raise _BadError("future")
    return Order(order["locationId"], order["orderType"], _money(order["finalAmount"]), time_ms)


def _check(value: Any, fields: dict[str, type]) -> None:
    if not isinstance(value, dict):
        raise _BadError("contract")
    for name, kind in fields.items():
        if name not in value:
            raise _BadError("contract")
        # An amount without a decimal point is an int. `isinstance` would also accept true as an
        # int.
        allowed = (int, Decimal) if kind is Decimal else (kind,)
        if type(value[name]) not in allowed:
            raise _BadError("contract")


def _money(number: int | Decimal) -> Decimal:
    amount = Decimal(number)
    if -int(amount.as_tuple().exponent) > _SCALE:
        raise _BadError("digits")
    return amount


def _time(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise _BadError("contract") from None
    # A time without a zone is in UTC.
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return int(when.timestamp() * 1000)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    # A dict keeps only the last of two fields with the same name.
    if len(members) != len(pairs):
        raise _BadError("duplicate_field")
    return members


def _no_number(_: str) -> Iterator[None]:
    # `json` calls this function for NaN and Infinity, which are not JSON.
    raise _BadError("malformed")


def _plus(total: Total | None, amount: Decimal) -> Total:
    if total is None:
        return 1, amount
    return total[0] + 1, total[1] + amount
