"""A change of a pipeline's topics and stores is compared with what other pipelines read of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import pytest

from sluice.values.contract_fields import contract_fields
from sluice.values.interfaces import (
    FORMAT,
    KEY,
    Interface,
    ReadableStore,
    Reader,
    breaches,
    breaches_text,
    next_step_of,
)


class Line(msgspec.Struct):
    sku: str
    price: float


class Order(msgspec.Struct):
    id: str
    amount: int
    lines: list[Line]
    note: str | None = None


class Exact(msgspec.Struct, forbid_unknown_fields=True):
    id: str


ORDERS = {
    "id": "STRING",
    "amount": "BIGINT",
    "lines": "ARRAY<STRUCT<sku: STRING, price: DOUBLE>>",
    "note": "STRING",
    "unread": "DATE",
}


def broken_in_topic(
    now: Mapping[str, str] | None, contract: Any = Order, before: Mapping[str, str] = ORDERS
) -> list[str]:
    """Return what the change of a topic's fields breaks for a reader with a contract."""
    reader = Reader("reports", {"orders": contract_fields(contract)})
    topics = {} if now is None else {"orders": now}
    return problems(Interface({"orders": before}, {}), Interface(topics, {}), reader)


def broken_in_store(
    now: ReadableStore | None, read: str, before: ReadableStore | None = None
) -> list[str]:
    """Return what the change of a store breaks for a reader of a type."""
    first = before or ReadableStore("STRUCT<id: STRING, age: INT>", "id")
    reader = Reader("reports", stores={"by_id": [read]})
    stores = {} if now is None else {"by_id": now}
    return problems(Interface({}, {"by_id": first}), Interface({}, stores), reader)


def problems(before: Interface, now: Interface, reader: Reader) -> list[str]:
    found: list[str] = []
    for breach in breaches(before, now, reader):
        found += breach.problems
    return found


def test_fields_that_nobody_reads_may_change_and_new_ones_may_come() -> None:
    assert broken_in_topic({**ORDERS, "unread": "STRING", "vat": "BIGINT"}) == []
    without = {name: kind for name, kind in ORDERS.items() if name != "unread"}
    assert broken_in_topic(without) == []


def test_an_optional_field_may_go() -> None:
    assert broken_in_topic({name: kind for name, kind in ORDERS.items() if name != "note"}) == []


def test_a_field_that_is_read_and_goes_or_gets_another_type_is_named() -> None:
    without = {name: kind for name, kind in ORDERS.items() if name != "amount"}
    assert broken_in_topic(without) == ["the field amount is missing"]
    changed = ORDERS | {"amount": "STRING"}
    assert broken_in_topic(changed) == ["the field amount is STRING, not BIGINT"]


def test_fields_of_objects_in_lists_are_compared() -> None:
    inner = ORDERS | {"lines": "ARRAY<STRUCT<sku: STRING>>"}
    assert broken_in_topic(inner) == ["the field lines[].price is missing"]
    other = ORDERS | {"lines": "STRING"}
    assert "the field lines is STRING, not list" in broken_in_topic(other)


def test_numbers_may_change_within_what_the_reader_takes() -> None:
    class Amount(msgspec.Struct):
        amount: float

    assert broken_in_topic(ORDERS | {"amount": "DECIMAL(12,2)"}, Amount) == []
    assert broken_in_topic(ORDERS | {"amount": "INT"}) == []
    assert broken_in_topic(ORDERS | {"amount": "DOUBLE"}) == [
        "the field amount is DOUBLE, not BIGINT"
    ]


def test_choices_are_compared_by_the_type_of_their_values() -> None:
    class Kind(msgspec.Struct):
        kind: Literal["a", "b"]

    before = {"kind": "STRING"}
    assert broken_in_topic(before, Kind, before) == []
    assert broken_in_topic({"kind": "BIGINT"}, Kind, before) != []


def test_a_type_that_is_not_known_breaks_nothing() -> None:
    assert broken_in_topic(ORDERS | {"amount": ""}) == []
    assert broken_in_topic({}) == []


def test_results_of_a_function_without_a_type_break_nothing() -> None:
    assert broken_in_topic({"value": "", KEY: "id", FORMAT: "JSON"}) == []


def test_another_format_is_a_breach() -> None:
    before = ORDERS | {FORMAT: "JSON"}
    assert broken_in_topic(ORDERS | {FORMAT: "AVRO"}, before=before) == [
        "its format was JSON and is AVRO"
    ]


def test_a_reader_that_forbids_unknown_fields_does_not_get_new_ones() -> None:
    before = {"id": "STRING"}
    assert broken_in_topic(before | {"vat": "INT"}, Exact, before) == [
        "the field vat is new, and the reader forbids unknown fields"
    ]


def test_what_did_not_fit_before_is_no_breach() -> None:
    before = {"id": "STRING"}
    assert broken_in_topic({"id": "STRING", "more": "INT"}, Order, before) == []
    # The reader lacked fields before the change, and loses one more.
    assert broken_in_topic({"more": "INT"}, Order, before) == ["the field id is missing"]


def test_another_key_and_the_end_of_a_topic_are_breaches() -> None:
    keyed = ORDERS | {KEY: "id"}
    assert broken_in_topic(ORDERS | {KEY: "customer"}, before=keyed) == [
        "its key was id and is customer"
    ]
    # The key was not registered by an earlier version, or is that of a function.
    assert broken_in_topic(keyed, before=ORDERS) == []
    assert broken_in_topic(None) == ["it is no longer written"]


@pytest.mark.parametrize("contract", [str, bytes])
def test_a_reader_of_texts_or_bytes_takes_every_value(contract: type) -> None:
    assert broken_in_topic({"other": "INT"}, contract) == []


def test_values_without_fields_are_compared() -> None:
    before = {"value": "BIGINT"}
    assert broken_in_topic(before | {KEY: "id"}, int, before) == []
    assert broken_in_topic({"value": "STRING"}, int, before) == [
        "its values are STRING, not BIGINT"
    ]
    assert broken_in_topic({"id": "STRING", "n": "BIGINT"}, int, before) == [
        "its values are objects, not BIGINT"
    ]


def test_a_reader_of_a_pattern_reads_the_topics_that_it_matches() -> None:
    reader = Reader("reports", {"^orders_.*": contract_fields(Order)})
    before = Interface({"orders_eu": ORDERS, "other": ORDERS}, {})
    now = Interface({"orders_eu": {"id": "STRING"}, "other": {"id": "STRING"}}, {})
    (breach,) = breaches(before, now, reader)
    assert breach.what == "the topic orders_eu"


def test_a_store_must_keep_the_fields_that_are_read() -> None:
    read = "STRUCT<id: STRING>"
    assert broken_in_store(ReadableStore("STRUCT<id: STRING, more: INT>", "id"), read) == []
    assert broken_in_store(ReadableStore("STRUCT<age: INT>", "id"), read) == ["id is missing"]
    assert broken_in_store(ReadableStore("STRUCT<id: BIGINT, age: INT>", "id"), read) == [
        "id is bigint, not string"
    ]


def test_a_store_must_stay_with_its_key_and_without_windows() -> None:
    value, read = "STRUCT<id: STRING, age: INT>", "STRUCT<id: STRING>"
    assert broken_in_store(None, read) == ["it was removed"]
    assert broken_in_store(ReadableStore(value, "name"), read) == ["its key was id and is name"]
    windowed = ReadableStore(value, "id", "tumbling 1 h")
    assert broken_in_store(windowed, read) == ["it has windows"]
    assert broken_in_store(windowed._replace(windows="tumbling 2 h"), read, windowed) == []


def test_the_message_names_readers_owners_files_and_fields() -> None:
    before = Interface({"orders": ORDERS}, {"by_id": ReadableStore("STRUCT<a: INT>", "id")})
    readers = [
        Reader("reports", {"orders": contract_fields(Order)}, file="/jobs/shop/reports.py"),
        Reader("audit", stores={"by_id": ["STRUCT<a: INT>"]}),
    ]
    found = []
    for reader in readers:
        found += breaches(before, Interface({"orders": {"id": "STRING"}}, {}), reader)
    text = breaches_text("sales", found, {"reports": "shop"})
    assert text == (
        "The change of sales breaks what other pipelines read. audit reads the store by_id: it was "
        "removed. reports (owner shop, /jobs/shop/reports.py) reads the topic orders: the field "
        "amount is missing, the field lines is missing."
    )
    step = next_step_of("sales", found)
    assert "Change audit and reports first, and run them" in step
    assert 'Pipeline("sales", may_break=["audit", "reports"])' in step
