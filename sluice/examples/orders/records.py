"""Sample orders and stores. The same arguments yield the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

STORE_1234 = "store_1234"
"""A store that is always among the samples, for examples to query."""

START_MS = 1_670_230_527_000
"""The time of the first order: 2022-12-05T08:55:27Z."""

_ORDERS_PER_SECOND = 200
"""The number of orders per second of event time."""

MAX_DISORDER_S = 10
"""An order's time is at most this many seconds before the times of the orders sent earlier. This is
less than the windows' grace, so no order is late."""

_LATE_BY_S = 120
_GOOD = ""


class Sample(NamedTuple):
    """A record as a producer sends it.

    `reason` is the expected reason of the record's dead letter; an empty text for a valid order.
    """

    key: str
    value: bytes
    timestamp_ms: int
    reason: str


class _Order(NamedTuple):
    number: int
    location: str
    cents: int
    kind: str
    when: str

    def json(
        self,
        *,
        amount: str = "",
        kind: str = "",
        when: str = "",
        number: str = "",
        more: str = "",
    ) -> str:
        """Return the order as JSON text. Arguments replace the order's own values."""
        return (
            f'{{"orderId":{number or self.number},"locationId":"{self.location}",'
            f'"finalAmount":{amount or _money(self.cents)},'
            f'"orderType":"{kind or self.kind}",'
            '"orderLineItems":['
            f'{{"item":"Bananas","count":2,"amount":2.00}},'
            f'{{"item":"Iphone Charger","count":1,"amount":{_money(self.cents - 200)}}}],'
            f'"orderedDateTime":"{when or self.when}"{more}}}'
        )


_BAD: tuple[tuple[str, Callable[[_Order], str]], ...] = (
    ("malformed", lambda order: order.json()[:-7]),
    ("malformed", lambda order: order.json() + order.json()),
    ("malformed", lambda order: order.json(amount="NaN")),
    ("empty_value", lambda _: ""),
    ("contract", lambda order: order.json(number=f'"{order.number}"')),
    ("contract", lambda order: order.json(amount=f"[{_money(order.cents)}]")),
    ("contract", lambda _: "[]"),
    ("digits", lambda order: order.json(amount=f"{_money(order.cents)}5")),
    ("contract", lambda order: order.json().replace(f'"locationId":"{order.location}",', "")),
    ("contract", lambda order: order.json(kind="ONLINE")),
    ("duplicate_field", lambda order: order.json(more=',"orderType":"GENERAL"')),
    ("contract", lambda order: order.json(when="2022-13-05T08:55:27")),
    ("contract", lambda order: order.json(when="yesterday")),
    ("future", lambda order: order.json(when="2099-01-01T00:00:00")),
)
"""Ways to make an order invalid, each with the expected reason of the dead letter."""


def store_ids(count: int) -> list[str]:
    """Return the names of `count` stores; the first is store_1234."""
    names = [STORE_1234]
    for number in range(count + 1):
        name = f"store_{number}"
        if name != STORE_1234:
            names.append(name)
    return names[:count]


def stores(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the key and value of every sample store, for the topic `stores`."""
    for number, location in enumerate(store_ids(count), start=1):
        store = (
            f'{{"locationId":"{location}",'
            f'"address":{{"addressLine1":"{number} Street 1","addressLine2":"",'
            f'"city":"City{number % 20}","state":"State{number % 5}","zip":"{10000 + number}"}},'
            f'"contactNum":"{1234567890 + number}"}}'
        )
        yield location, store.encode()


def orders(
    count: int,
    stores: int = 50,
    seed: int = 7,
    bad_share: float = 0.0,
    late_share: float = 0.0,
    start_ms: int = START_MS,
) -> Iterator[Sample]:
    """Yield `count` orders of `stores` stores, 200 per second of event time.

    A few are out of order. The first order is placed at `start_ms`. A share of about `bad_share` of
    the records are invalid, in various ways. A share of about `late_share` are two minutes old, so
    most of these arrive after their window has closed.
    """
    random = Random(seed)
    locations = store_ids(stores)
    second_of = _Seconds()
    for number in range(count):
        second = start_ms // 1000 + number // _ORDERS_PER_SECOND
        luck = random.random()
        if luck < late_share:
            second -= _LATE_BY_S
        elif luck > 0.95:
            second -= random.randrange(1, MAX_DISORDER_S + 1)
        order = _Order(
            number=number,
            location=locations[int(random.random() * stores)],
            cents=300 + int(random.random() * 9700),
            kind="GENERAL" if random.random() < 0.5 else "RESTAURANT",
            when=second_of(second),
        )
        reason, text = _GOOD, order.json()
        if random.random() < bad_share:
            reason, write = random.choice(_BAD)
            text = write(order)
        yield Sample(order.location, text.encode(), second * 1000, reason)


def messages(
    count: int | str,
    stores: int | str,
    seed: int | str,
    start_s: float | str,
) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and values of sample orders, for a templated operator.

    The first order is placed at `start_s` (epoch seconds).
    """
    # Airflow renders templates to texts, so convert them to numbers.
    start_ms = int(float(start_s)) * 1000
    for sample in orders(int(count), int(stores), int(seed), bad_share=0.002, start_ms=start_ms):
        yield sample.key, sample.value


def store_messages(count: int | str) -> Iterator[tuple[str, bytes]]:
    """Return the key and value of every sample store, for a templated operator."""
    return stores(int(count))


class _Seconds:
    """Converts epoch seconds to ISO text. Caches texts, because many orders share a second."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def __call__(self, second: int) -> str:
        text = self._texts.get(second)
        if text is None:
            text = self._texts[second] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return text


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"
