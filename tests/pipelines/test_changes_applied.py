"""Streams of changes as tables: Debezium's JSON in both forms, and the changes that Sluice writes itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Struct

from sluice import Change, Decimal2, Pipeline, Serde, debezium, debezium_key
from sluice.errors import TopologyError
from sluice.topology import drawing
from tests.pipelines.conftest import Drive


class Shop(Struct):
    city: str
    rent: Decimal2
    floors: int | None = None


class ShopChange(Change[Shop]):
    pass


class NumberChange(Change[int]):
    pass


class Untyped(Change):  # type: ignore[type-arg]
    pass


def envelope(operation: str, before: Any = None, after: Any = None, *, schema: bool = False) -> Any:
    payload = {
        "before": before,
        "after": after,
        "source": {"db": "shop", "ts_ms": 5},
        "op": operation,
        "ts_ms": 7,
    }
    return {"schema": {"type": "struct", "fields": []}, "payload": payload} if schema else payload


def key_of(number: int, *, schema: bool = False) -> str:
    key = {"id": number}
    return json.dumps({"schema": {"type": "struct"}, "payload": key} if schema else key)


def shops(name: str, **options: Any) -> Pipeline:
    pipeline = Pipeline(name, workers=2, max_failures=1.0)
    changes = pipeline.stream(
        "db.shops", value=debezium(ShopChange), key=debezium_key, nulls="keep"
    )
    rows = changes.apply_changes(store="shops", **options)
    rows.group_by("city").aggregate(store="rents", rent="sum(rent)")
    rows.filter("floors > 1").to("tall")
    rows.changes().to("copied", value=debezium(ShopChange))
    return pipeline


PUNE = {"city": "Pune", "rent": 2.5, "floors": 1}
TALL = {"city": "Pune", "rent": 4.5, "floors": 2}
GOA = {"city": "Goa", "rent": 1.25, "floors": 9}


@pytest.mark.parametrize("schema", [False, True], ids=["without schema", "with schema"])
@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_a_topic_of_debezium_is_a_table(drive: Drive, schema: bool, by_one: bool) -> None:
    driver = drive(shops("shops"))
    sent: list[tuple[int, Any]] = [
        (1, envelope("r", None, PUNE, schema=schema)),
        (2, envelope("c", None, GOA, schema=schema)),
        (1, envelope("u", PUNE, TALL, schema=schema)),
        # PostgreSQL sends only the columns of the key before a deletion, unless all are asked for.
        (2, envelope("d", {"city": None, "rent": None}, None, schema=schema)),
        (2, None),
        (3, envelope("m", schema=schema)),
        (3, {"status": "BEGIN", "id": "571", "event_count": None}),
        (3, envelope("c", None, GOA, schema=schema)),
    ]
    for number, value in sent:
        driver.pipe("db.shops", value, key_of(number, schema=schema))
        if by_one:
            driver.commit()
    assert driver.store("shops") == {"1": TALL, "3": GOA}
    assert driver.store("rents") == {"Pune": {"rent": 4.5}, "Goa": {"rent": 1.25}}
    assert [
        (record.key, record.value) for record in driver.output("copied") if record.key == "1"
    ] == [
        ("1", {"before": None, "after": PUNE, "op": "c"}),
        ("1", {"before": PUNE, "after": TALL, "op": "u"}),
    ]
    assert driver.counts()["filtered"] == 3
    assert driver.dead_letters() == []


def test_what_debezium_writes_can_be_read_again(drive: Drive) -> None:
    first = drive(shops("first"))
    first.pipe("db.shops", envelope("c", None, PUNE), key_of(1))
    first.pipe("db.shops", envelope("u", PUNE, GOA), key_of(1))
    first.pipe("db.shops", envelope("c", None, TALL), key_of(2))
    first.pipe("db.shops", envelope("d", TALL, None), key_of(2))
    pipeline = Pipeline("second", workers=2)
    copied = pipeline.stream("copied", value=debezium(ShopChange))
    copied.apply_changes(store="shops", check_old="reject")
    second = drive(pipeline)
    for record in first.output("copied"):
        second.pipe("copied", record.value, record.key)
    assert second.store("shops") == first.store("shops") == {"1": GOA}
    assert second.dead_letters() == []


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
@pytest.mark.parametrize("check_old", ["count", "reject", None])
def test_the_old_row_of_a_change_is_checked(drive: Drive, check_old: Any, by_one: bool) -> None:
    driver = drive(shops("checked", check_old=check_old))
    for value in (envelope("c", None, PUNE), envelope("u", TALL, GOA), envelope("u", None, TALL)):
        driver.pipe("db.shops", value, key_of(1))
        if by_one:
            driver.commit()
    driver.pipe("db.shops", envelope("u", GOA, PUNE), key_of(2))
    rejects = check_old == "reject"
    assert driver.store("shops") == ({"1": TALL} if rejects else {"1": TALL, "2": PUNE})
    assert driver.counts().get("old_differs/changedrows-2", 0) == (2 if check_old == "count" else 0)
    details = sorted(letter.headers["sluice.detail"] for letter in driver.dead_letters())
    assert len(details) == (2 if rejects else 0)
    if rejects:
        assert details[0].endswith("which has none")
        assert '"city":"Pune"' in details[1]


class Place(Struct):
    id: int
    city: str | None = None
    rent: Decimal2 | None = None


class PlaceChange(Change[Place]):
    pass


OSLO = {"id": 1, "city": "Oslo", "rent": 2.5}
PARTS_OF_OSLO: list[Any] = [
    None, OSLO, {"id": 1}, {"id": 1, "city": None, "rent": None}, {"id": 1, "city": "Oslo"}, {"id": 1, "rent": "2.50"},
    {"id": 1, "city": "Oslo", "rent": None}, {},
]  # fmt: skip
NOT_OF_OSLO: list[Any] = [
    {"id": 1, "city": "Rome"},
    {"id": 1, "city": "Oslo", "rent": 3},
    {"id": 2, "city": "Oslo"},
]


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
@pytest.mark.parametrize("check_old", ["count", "reject"])
def test_only_columns_that_were_sent_are_compared(
    drive: Drive, check_old: Any, by_one: bool
) -> None:
    pipeline = Pipeline("places", workers=2, max_failures=1.0)
    changes = pipeline.stream("places", value=debezium(PlaceChange), key=debezium_key, nulls="keep")
    changes.apply_changes(store="rows", check_old=check_old)
    driver = drive(pipeline)
    driver.pipe("places", envelope("c", None, OSLO), key_of(1))
    for before in (*PARTS_OF_OSLO, *NOT_OF_OSLO):
        driver.pipe("places", envelope("u", before, OSLO), key_of(1))
        if by_one:
            driver.commit()
    differ = len(NOT_OF_OSLO)
    assert driver.store("rows") == {"1": OSLO}
    assert driver.counts().get("old_differs/changedrows-2", 0) == (
        differ if check_old == "count" else 0
    )
    assert len(driver.dead_letters()) == (differ if check_old == "reject" else 0)


def test_the_changes_of_a_table_are_compared_in_all_columns(drive: Drive) -> None:
    pipeline = Pipeline("own_places", workers=2, max_failures=1.0)
    changes = pipeline.stream("changes", value=PlaceChange)
    changes.apply_changes(store="rows", check_old="count")
    driver = drive(pipeline)
    driver.pipe("changes", {"kind": "insert", "new": OSLO}, "1")
    driver.pipe("changes", {"kind": "update", "old": OSLO | {"city": None}, "new": OSLO}, "1")
    assert driver.counts()["old_differs/changedrows-2"] == 1


def test_changes_that_cannot_be_applied_are_rejected(drive: Drive) -> None:
    driver = drive(shops("rejected"))
    sent: list[tuple[Any, Any]] = [
        (key_of(1), envelope("c", None, {"city": "Pune"})),
        (key_of(1), envelope("u", PUNE, None)),
        (key_of(1), envelope("d", PUNE, PUNE)),
        (key_of(1), envelope("x", None, PUNE)),
        (key_of(1), {"city": "Pune"}),
        (key_of(1), envelope("t")),
        ("no json", envelope("c", None, PUNE)),
        (None, envelope("c", None, PUNE)),
    ]
    for key, value in sent:
        driver.pipe("db.shops", value, key)
    assert driver.store("shops") == {}
    letters = [
        (one.headers["sluice.reason"], one.headers["sluice.detail"])
        for one in driver.dead_letters()
    ]
    assert sorted(reason for reason, _ in letters) == [
        "contract",
        *["key"],
        *["malformed"] * 4,
        "processing",
    ]
    assert any("the change removes all rows of the table" in detail for _, detail in letters)
    assert driver.counts()["null_key/shops"] == 1


def test_a_key_of_several_columns_is_an_object() -> None:
    assert debezium_key(b'{"id":7}') == "7"
    assert debezium_key(b'"seven"') == "seven"
    several = b'{"schema":{"type":"struct"},"payload":{"shop":"s1","floor":2}}'
    assert debezium_key(several) == '{"floor":2,"shop":"s1"}'
    for wrong in (b"", b"null", b'{"id":null}'):
        with pytest.raises(ValueError, match=r"null|Expecting value"):
            debezium_key(wrong)


def test_own_changes_become_a_table_again(drive: Drive) -> None:
    pipeline = Pipeline("own", workers=2)
    numbers = pipeline.table("numbers", value=int)
    numbers.changes().apply_changes(store="copied", check_old="reject")
    written = pipeline.stream("written", value=NumberChange)
    written.apply_changes(store="read").map_values("value + 1").to("next")
    driver = drive(pipeline)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("b", None)):
        driver.pipe("numbers", value, key)
    for change in (
        {"kind": "insert", "new": 5},
        {"kind": "update", "old": 5, "new": 6},
        {"kind": "delete", "old": 6},
    ):
        driver.pipe("written", change, "k")
    assert driver.store("numbers") == driver.store("copied") == {"a": 3}
    assert driver.store("read") == {}
    assert [record.value for record in driver.output("next")] == [6, 7, None]
    assert driver.dead_letters() == []


def test_wrong_streams_of_changes_are_errors() -> None:
    pipeline = Pipeline("wrong")
    with pytest.raises(TopologyError, match=r"debezium\(Shop\): expected a class of changes"):
        debezium(Shop)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="Untyped does not declare the type of its rows"):
        debezium(Untyped)
    with pytest.raises(TopologyError, match="not kind, old and new"):
        pipeline.stream("shops", value=Shop).apply_changes(store="shops")
    shops = pipeline.table("tabled_shops", value=Shop)
    no_changes = r"needs values with the fields kind, old and new.* table\.changes"
    with pytest.raises(TopologyError, match=no_changes):
        shops.to("out0", value=debezium(ShopChange))
    with pytest.raises(TopologyError, match=no_changes):
        shops.to_stream().to("out1", value=debezium(ShopChange))
    changes = pipeline.stream("changes", value=debezium(ShopChange))
    with pytest.raises(TopologyError, match="check_old='always'"):
        changes.apply_changes(store="shops", check_old="always")  # type: ignore[call-overload]
    changes.apply_changes(store="rows", check_old="count")
    assert "apply changes: old rows checked: count" in drawing.text(pipeline)
    with pytest.raises(TopologyError, match="has no encode function"):
        changes.to("out", value=Serde(ShopChange))


def count_up(counts: dict[str, int], _: int) -> dict[str, int]:
    return {"n": counts.get("n", 0) + 1}


def test_changes_of_rows_of_an_unknown_type_can_be_written(drive: Drive) -> None:
    pipeline = Pipeline("untyped", workers=2)
    counted = pipeline.stream("numbers", value=int).group_by_key()
    counts = counted.aggregate(dict, count_up, store="counts")
    counts.changes().to("changes")
    driver = drive(pipeline)
    for number in (7, 8):
        driver.pipe("numbers", number, "k")
    assert [record.value for record in driver.output("changes")] == [
        {"kind": "insert", "old": None, "new": {"n": 1}},
        {"kind": "update", "old": {"n": 1}, "new": {"n": 2}},
    ]
