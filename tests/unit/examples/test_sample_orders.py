"""Sample orders, and their expected totals."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.examples.orders import (
    START_MS,
    STORE_1234,
    Sample,
    Totals,
    orders,
    store_ids,
    stores,
    totals,
)
from sluice.examples.orders.expected_totals import GRACE_MS, WINDOW_MS
from sluice.examples.orders.records import MAX_DISORDER_S

COUNTS = st.integers(1, 300)
SEEDS = st.integers(0, 2**31)


def order(
    when: str = "2022-12-05T08:55:27",
    amount: str = "27.00",
    kind: str = "GENERAL",
    location: str = "a",
) -> bytes:
    return (
        f'{{"orderId":1,"locationId":"{location}","finalAmount":{amount},"orderType":"{kind}",'
        f'"orderLineItems":[],"orderedDateTime":"{when}"}}'
    ).encode()


def added(samples: list[Sample]) -> Totals:
    return totals((0, sample.value) for sample in samples)


@given(COUNTS, st.integers(1, 60), SEEDS)
def test_the_same_seed_makes_the_same_bytes(count: int, locations: int, seed: int) -> None:
    assert list(orders(count, locations, seed, 0.1, 0.1)) == list(
        orders(count, locations, seed, 0.1, 0.1)
    )


def test_another_seed_makes_other_orders() -> None:
    assert list(orders(10, seed=1)) != list(orders(10, seed=2))


def test_an_order_has_the_fields_of_the_requirements() -> None:
    sample = next(iter(orders(1)))
    result = json.loads(sample.value, parse_float=str)
    assert list(result) == [
        "orderId",
        "locationId",
        "finalAmount",
        "orderType",
        "orderLineItems",
        "orderedDateTime",
    ]
    assert result["locationId"] == sample.key
    assert sum(Decimal(item["amount"]) for item in result["orderLineItems"]) == Decimal(
        result["finalAmount"]
    )
    assert result["orderedDateTime"] == "2022-12-05T08:55:27"
    assert sample.timestamp_ms == START_MS


def test_each_store_has_an_address_and_one_is_1234() -> None:
    results = {key: json.loads(value) for key, value in stores(50)}
    assert len(results) == 50
    assert results[STORE_1234]["address"].keys() == {
        "addressLine1",
        "addressLine2",
        "city",
        "state",
        "zip",
    }
    assert all(value["locationId"] == key for key, value in results.items())


def test_a_single_store_is_1234() -> None:
    assert store_ids(1) == [STORE_1234]


def test_store_names_are_unique() -> None:
    assert len(set(store_ids(2_000))) == 2_000


@given(COUNTS, SEEDS)
def test_every_bad_order_is_rejected_for_its_reason(count: int, seed: int) -> None:
    samples = list(orders(count, 5, seed, bad_share=0.5))
    expected = Counter(sample.reason for sample in samples if sample.reason)
    assert added(samples).dead_letters == expected


def test_every_kind_of_bad_order_occurs() -> None:
    reasons = added(list(orders(2_000, bad_share=0.5))).dead_letters
    assert set(reasons) == {
        "malformed",
        "empty_value",
        "contract",
        "digits",
        "duplicate_field",
        "future",
    }


@given(COUNTS, SEEDS)
def test_no_order_is_late_by_default(count: int, seed: int) -> None:
    assert MAX_DISORDER_S * 1000 < GRACE_MS
    assert not added(list(orders(count, 5, seed))).late


def test_late_orders_count_in_the_running_totals_only() -> None:
    result = added(list(orders(30_000, late_share=0.01)))
    late = sum(result.late.values())
    assert late > 100
    assert sum(count for count, _ in result.running.values()) == 30_000
    assert sum(count for count, _ in result.windows.values()) == 30_000 - late


@given(COUNTS, SEEDS)
def test_every_record_and_cent_is_counted(count: int, seed: int) -> None:
    samples = list(orders(count, 7, seed, 0.1))
    result = added(samples)
    good = [
        json.loads(sample.value, parse_float=Decimal)["finalAmount"]
        for sample in samples
        if not sample.reason
    ]
    assert result.read == count == len(good) + sum(result.dead_letters.values())
    assert sum((amount for _, amount in result.running.values()), Decimal(0)) == sum(
        good, Decimal(0)
    )
    assert sum((amount for _, amount in result.windows.values()), Decimal(0)) == sum(
        good, Decimal(0)
    )


@pytest.mark.parametrize(
    ("ahead_s", "late"),
    [(29, False), (30, True), (31, True)],
    ids=["grace - 1", "grace", "grace + 1"],
)
def test_a_window_closes_when_stream_time_reaches_its_end_and_grace(
    ahead_s: int, late: bool
) -> None:
    result = totals(
        [(0, order(f"2022-12-05T08:55:{ahead_s:02}")), (0, order("2022-12-05T08:55:00"))]
    )
    assert bool(result.late) is late


def test_stream_time_belongs_to_a_partition_and_an_order_type() -> None:
    old, new = order("2022-12-05T08:55:00"), order("2022-12-05T08:59:00")
    assert not totals([(0, new), (1, old)]).late
    assert not totals([(0, order("2022-12-05T08:59:00", kind="RESTAURANT")), (0, old)]).late
    assert totals([(0, new), (0, old)]).late == {"GENERAL": 1}


def test_a_rejected_record_does_not_advance_stream_time() -> None:
    assert not totals([(0, order("2099-01-01T00:00:00")), (0, order("2022-12-05T08:55:00"))]).late


def test_the_eight_stores() -> None:
    first, second = order(amount="27.00"), order(amount="0.01", when="2022-12-05T08:55:44")
    result = totals([(0, first), (0, second), (0, order(kind="RESTAURANT", location="b"))]).stores()
    start = 1_670_230_515_000
    assert result["general_orders_count"] == {"a": 2}
    assert result["general_orders_revenue"] == {"a": (2, Decimal("27.01"))}
    assert result["general_orders_count_window"] == {("a", start): 1, ("a", start + WINDOW_MS): 1}
    assert result["general_orders_revenue_window"] == {
        ("a", start): (1, Decimal("27.00")),
        ("a", start + WINDOW_MS): (1, Decimal("0.01")),
    }
    assert result["restaurant_orders_revenue"] == {"b": (1, Decimal("27.00"))}
    assert len(result) == 8


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null_value"),
        (b"", "empty_value"),
        (b"\xff", "not_utf8"),
        (b"{", "malformed"),
        (b"null", "contract"),
        (order() + b" {}", "malformed"),
        (order(amount="NaN"), "malformed"),
        (order(amount="1.005"), "digits"),
        (order(amount='"1.00"'), "contract"),
        (order(amount="true"), "contract"),
        (order(kind="general"), "contract"),
        (order(when="2022-12-32T00:00:00"), "contract"),
        (order(when="2099-12-31T00:00:00"), "future"),
        (order().replace(b"orderId", b"orderID"), "contract"),
        (order().replace(b'{"orderId":1', b'{"orderId":1,"orderId":1'), "duplicate_field"),
    ],
)
def test_an_invalid_order_counts_as_a_dead_letter_with_this_reason(
    value: bytes | None, reason: str
) -> None:
    assert totals([(0, value)]).dead_letters == {reason: 1}
