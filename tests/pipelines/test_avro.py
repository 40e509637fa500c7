"""Pipelines that read and write Avro, with a schema registry in memory."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct

from sluice import Avro, Decimal2, EpochMillis, Pipeline, TopologyError, avro_key
from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.testing import TopologyTestDriver
from sluice.topology import load_pipeline
from sluice.topology.pulled_schemas import write_file
from sluice.values.avro_schemas import schema_of_contract
from sluice.values.registered_schemas import RegisteredSchema, guid_header

pytestmark = pytest.mark.pipelines

AT = datetime(2024, 5, 1, 12, 30, 15, 250_000, tzinfo=UTC)


class Line(Struct):
    item: str
    count: int


class Order(Struct):
    id: int
    shop: str
    amount: Decimal2
    kind: Literal["GENERAL", "RESTAURANT"]
    lines: list[Line]
    at: EpochMillis
    day: date
    note: str | None = None


class Total(Struct):
    total: Decimal2
    orders: int


ORDER: dict[str, Any] = {
    "id": 1,
    "shop": "a",
    "amount": Decimal("12.50"),
    "kind": "GENERAL",
    "lines": [{"item": "tea", "count": 2}],
    "at": AT,
    "day": date(2024, 5, 1),
    "note": None,
}


def orders(**options: Any) -> Pipeline:
    pipeline = Pipeline("shop")
    read = pipeline.stream("orders", value=Avro(Order), key="shop", event_time="at")
    read.to("copies", value=Avro(Order, **options))
    totals = read.group_by_key().aggregate(store="sums", total="sum(amount)", orders="count(*)")
    totals.to("totals", value=Avro(Total))
    return pipeline


@pytest.mark.parametrize("count", [1, 60], ids=["one by one", "as columns"])
def test_values_are_read_and_written_exactly(count: int) -> None:
    with TopologyTestDriver(orders()) as driver:
        for number in range(count):
            driver.pipe("orders", ORDER | {"id": number})
        copies = driver.read("copies")
        assert [copy.value for copy in copies] == [ORDER | {"id": n} for n in range(count)]
        total = Decimal("12.50") * count
        assert driver.read("totals")[-1].value == {"total": total, "orders": count}
        assert driver.store("sums") == {"a": {"total": float(total), "orders": count}}
        assert not driver.dead_letters()


def test_a_record_of_each_version_in_one_batch_is_read_by_its_own_schema() -> None:
    with TopologyTestDriver(orders()) as driver:
        first = driver.registry.version("orders-value")
        schema = json.loads(first.text)
        schema["fields"] = [each for each in schema["fields"] if each["name"] != "note"]
        schema["fields"].insert(0, {"name": "added", "type": {"type": "map", "values": "string"}})
        for number in range(100):
            driver.pipe("orders", ORDER | {"id": number, "note": "x"})
        driver.registry.register("orders-value", json.dumps(schema))
        for number in range(100, 200):
            value = {name: each for name, each in ORDER.items() if name != "note"}
            driver.pipe("orders", value | {"id": number, "added": {"b": "c"}})
        values = [copy.value for copy in driver.read("copies")]
    assert [value["id"] for value in values] == [*range(200)]
    assert {value["note"] for value in values[:100]} == {"x"}
    assert {value["note"] for value in values[100:]} == {None}


def test_poison_becomes_dead_letters_with_schema_and_path() -> None:
    with TopologyTestDriver(orders()) as driver:
        driver.pipe("orders", ORDER)
        (good,) = driver.read("copies")
        schema = json.loads(driver.registry.version("orders-value").text)
        schema["fields"] = schema["fields"][1:]
        short = driver.registry.register("orders-value", json.dumps(schema))
        value = driver._registered.encoded("orders", {**ORDER, "id": None})
        assert value[:5] == b"\0\0\0\0" + bytes([short.id])
        good_bytes = driver._run.output.records["copies"][0]["value"]
        in_orders = b"\0\0\0\0\1" + good_bytes[5:]
        driver.pipe("orders", b"\0\0\0\0\x63" + good_bytes[5:])
        driver.pipe("orders", in_orders[:23])
        driver.pipe("orders", in_orders + b"\0")
        driver.pipe("orders", value)
        driver.pipe("orders", b"{}")
        letters = [
            (letter.headers["sluice.reason"], letter.headers["sluice.detail"])
            for letter in driver.dead_letters()
        ]
    assert good.value == ORDER
    assert letters == [
        ("unknown_schema", "the registry has no schema 99"),
        (
            "malformed",
            "$.lines[0].item: the value ends after 2 of 3 bytes of this part"
            " - by schema 1 (orders-value, version 1)",
        ),
        (
            "malformed",
            "$: 1 bytes are left after the value - by schema 1 (orders-value, version 1)",
        ),
        (
            "schema",
            "$.id: the field is missing and has no default"
            f" - in schema {short.id} (orders-value, version 2)",
        ),
        ("no_schema", "it begins with 7b 7d, not with a zero byte and the id of a schema"),
    ]


@pytest.mark.parametrize("count", [1, 60], ids=["one by one", "as columns"])
def test_a_header_may_name_the_schema(count: int) -> None:
    with TopologyTestDriver(orders(schema_in="header")) as driver:
        schema = driver.registry.version("orders-value")
        value = driver._registered.encoded("orders", ORDER)
        for number in range(count):
            # Every second record has its schema in the header.
            if number % 2:
                driver.pipe("orders", value)
            else:
                header = {"__value_schema_id": guid_header(schema.guid), "own": b"1"}
                driver.pipe("orders", value[5:], headers=header)
        copies = driver.read("copies")
        written = driver.registry.version("copies-value")
        assert [copy.value for copy in copies] == [ORDER] * count
        names = [name for name, _ in copies[0].header_pairs]
        assert names == ["own", "__value_schema_id"]
        assert copies[0].headers["__value_schema_id"] == guid_header(written.guid)
        # Results in another format do not name the schema of the values that they come from.
        assert "__value_schema_id" not in driver.read("totals")[0].headers


def test_a_value_that_does_not_fit_is_counted_as_unwritten() -> None:
    pipeline = Pipeline("p")
    totals = pipeline.stream("numbers", value=Total).select("total", "orders")
    totals.to("totals", value=Avro(Total, version="latest"))
    with TopologyTestDriver(pipeline) as driver:
        narrow = driver.registry.version("totals-value").text.replace('"long"', '"int"')
        driver.registry.register("totals-value", narrow)
        driver.pipe("numbers", {"total": Decimal("1.5"), "orders": 2**31})
        driver.pipe("numbers", {"total": Decimal("1.5"), "orders": 2**31 - 1})
        assert driver.read("totals")[0].value == {"total": Decimal("1.5"), "orders": 2**31 - 1}
        assert driver.counts()["unwritten/totals"] == 1
        (letter,) = driver.dead_letters()
        assert "$.orders: 2147483648 has more than 32 bits" in letter.headers["sluice.detail"]


class Place(Struct):
    country: str
    zip: int


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (str, "a", "a"),
        (int, 7, "7"),
        (Place, {"country": "DE", "zip": 12345}, '{"country":"DE","zip":12345}'),
    ],
)
@pytest.mark.parametrize("schema_in", ["prefix", "header"])
def test_keys_are_texts_inside_a_pipeline(
    kind: type[Any], key: Any, text: str, schema_in: Literal["prefix", "header"]
) -> None:
    pipeline = Pipeline("keyed")
    read = pipeline.stream("totals", value=Avro(Total), key=avro_key())
    read.to("copies", value=Avro(Total), key=avro_key(kind, schema_in=schema_in))
    read.group_by_key().count(store="counts")
    with TopologyTestDriver(pipeline) as driver:
        driver.registry.register("totals-key", schema_of_contract(kind))
        driver.pipe("totals", {"total": 1, "orders": 2}, key=key)
        assert driver.store("counts") == {text: 1}
        (copy,) = driver.read("copies")
        assert (copy.key, copy.value) == (key, {"total": Decimal("1.00"), "orders": 2})
        assert ("__key_schema_id" in copy.headers) == (schema_in == "header")
        driver.pipe("totals", {"total": 1, "orders": 2}, key=b"no id")
        (letter,) = driver.dead_letters()
        assert "not with a zero byte and the id of a schema" in letter.headers["sluice.detail"]


SCHEMA = {
    "type": "record",
    "name": "Payment",
    "namespace": "bank",
    "fields": [
        {"name": "payer", "type": "string", "aliases": ["paidBy"]},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {
            "name": "means",
            "type": [
                {
                    "type": "record",
                    "name": "Card",
                    "fields": [{"name": "digits", "type": "string"}],
                },
                {
                    "type": "record",
                    "name": "Cash",
                    "fields": [{"name": "currency", "type": "string", "default": "EUR"}],
                },
            ],
        },
        {"name": "level", "type": {"type": "enum", "name": "Level", "symbols": ["LOW", "HIGH"]}},
        {"name": "tags", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
PIPELINE = """
from sluice import Avro, Pipeline


def name(payment):
    return type(payment.means).__name__


pipeline = Pipeline("bank")
payments = pipeline.stream("payments", value=Avro("payments-value"), key="payer")
payments.filter("amount > 1").to("large", value=Avro("payments-value"))
payments.map_values(name, returns=str).to("names")
payments.group_by_key().aggregate(store="paid", total="sum(amount)")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bank.py").write_text(PIPELINE)
    schema = RegisteredSchema(id=7, text=json.dumps(SCHEMA), subject="payments-value", version=3)
    write_file(tmp_path, schema)
    return tmp_path


def test_a_pulled_schema_is_the_contract(folder: Path) -> None:
    with TopologyTestDriver(load_pipeline(folder, "bank")) as driver:
        payment = {"payer": "Ann", "amount": Decimal("2.50"), "level": "LOW", "tags": {"a": 1}}
        driver.pipe("payments", payment | {"means": {"type": "Card", "digits": "42"}})
        driver.pipe("payments", payment | {"means": {"type": "Cash", "currency": "EUR"}})
        assert driver.store("paid") == {"Ann": {"total": 5.0}}
        assert [output.value for output in driver.read("names")] == ["Card", "Cash"]
        (card, cash) = driver.read("large")
        assert card.value == payment | {"means": {"digits": "42"}}
        assert cash.value == payment | {"means": {"currency": "EUR"}}


def test_earlier_names_of_fields_are_aliases(folder: Path) -> None:
    with TopologyTestDriver(load_pipeline(folder, "bank")) as driver:
        text = (
            json.dumps(SCHEMA)
            .replace('"payer"', '"paidBy"')
            .replace('"aliases": ["paidBy"]', '"doc": ""')
        )
        driver.registry.register("payments-value", text)
        means = {"type": "Cash", "currency": "EUR"}
        driver.pipe("payments", {"paidBy": "Bob", "amount": 3, "level": "HIGH", "means": means})
        assert driver.store("paid") == {"Bob": {"total": 3.0}}


def test_expressions_are_checked_against_a_pulled_schema(folder: Path) -> None:
    (folder / "bank.py").write_text(PIPELINE.replace("amount > 1", "amuont > 1"))
    with pytest.raises(TopologyError, match="amuont"):
        load_pipeline(folder, "bank")


def test_a_schema_that_was_not_pulled_is_an_error_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(PIPELINE)
    with pytest.raises(TopologyError, match="sluice schema pull payments-value"):
        load_pipeline(tmp_path, "bank")


def test_recursive_schemas_are_refused(tmp_path: Path) -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "left", "type": ["null", "Tree"]}],
    }
    (tmp_path / "bank.py").write_text(PIPELINE)
    write_file(tmp_path, RegisteredSchema(id=1, text=json.dumps(tree), subject="payments-value"))
    with pytest.raises(TopologyError, match="Tree contains itself"):
        load_pipeline(tmp_path, "bank")


class Opened(Struct, tag="opened"):
    account: str


class Paid(Struct, tag="paid"):
    account: str
    amount: Decimal2


class Noted(Struct):
    id: int
    note: Any = None


@pytest.mark.parametrize("count", [1, 60], ids=["one by one", "many"])
def test_a_union_of_tagged_classes_is_a_union_of_records(count: int) -> None:
    pipeline = Pipeline("accounts")
    events = pipeline.stream("events", value=Avro(Opened | Paid), key="account")
    events.to("copies", value=Avro(Opened | Paid))
    events.filter("type = 'paid'").group_by_key().aggregate(store="paid", total="sum(amount)")
    with TopologyTestDriver(pipeline) as driver:
        for _ in range(count):
            driver.pipe("events", Opened("a"))
            driver.pipe("events", Paid("a", Decimal("2.5")))
        copies = [copy.value for copy in driver.read("copies")]
        assert copies == [{"account": "a"}, {"account": "a", "amount": Decimal("2.50")}] * count
        assert driver.store("paid") == {"a": {"total": 2.5 * count}}


def test_a_class_that_avro_lacks_can_be_read_and_not_written() -> None:
    pipeline = Pipeline("notes")
    notes = pipeline.stream("notes", value=Avro(Noted))
    notes.to("copies")
    with pytest.raises(TopologyError, match=r"Noted\.note: Any has no type in Avro"):
        notes.to("avro_copies", value=Avro(Noted))
    note = ["null", "string", {"type": "array", "items": "int"}]
    fields = [{"name": "id", "type": "int"}, {"name": "note", "type": note}]
    with TopologyTestDriver(pipeline) as driver:
        with pytest.raises(TopologyError, match=r"driver\.registry\.register"):
            driver.pipe("notes", {"id": 1, "note": "x"})
        schema = {"type": "record", "name": "N", "fields": fields}
        driver.registry.register("notes-value", json.dumps(schema))
        for value in ({"id": 1, "note": "x"}, {"id": 2, "note": [1]}, {"id": 3, "note": None}):
            driver.pipe("notes", value)
        assert [copy.value for copy in driver.read("copies")] == [
            {"id": 1, "note": "x"},
            {"id": 2, "note": [1]},
            {"id": 3, "note": None},
        ]


@pytest.mark.parametrize(
    ("columns", "named", "problem"),
    [
        (["total"], {}, "the values have no orders, which Total needs"),
        (["total", "orders"], {"more": "orders"}, "Total has no more, which the values have"),
        (["total"], {"orders": "'x'"}, "orders is STRING, but BIGINT in Total"),
    ],
)
def test_an_output_that_surely_does_not_fit_is_an_error_when_the_file_is_loaded(
    columns: list[str], named: dict[str, Any], problem: str
) -> None:
    pipeline = Pipeline("p")
    selected = pipeline.stream("numbers", value=Total).select(*columns, **named)
    with pytest.raises(TopologyError, match=re.escape(problem)):
        selected.to("totals", value=Avro(Total))


class AccountOpened(Struct, tag="Opened"):
    account: str


class AmountPaid(Struct, tag="Paid"):
    account: str
    amount: int


def test_records_of_several_subjects_are_a_union_of_classes() -> None:
    account = {"name": "account", "type": "string"}
    opened = {"type": "record", "name": "bank.Opened", "fields": [account]}
    paid = {**opened, "name": "bank.Paid", "fields": [account, {"name": "amount", "type": "int"}]}
    other = {**opened, "name": "bank.Closed"}
    pipeline = Pipeline("accounts")
    events = pipeline.stream(
        "events", value=Avro(AccountOpened | AmountPaid, strategy="record"), key="account"
    )
    events.filter("type = 'Paid'").group_by_key().aggregate(store="paid", total="sum(amount)")
    with TopologyTestDriver(pipeline) as driver:
        for schema, value in (
            (opened, {"account": "a"}),
            (paid, {"account": "a", "amount": 5}),
            (other, {"account": "a"}),
        ):
            registered = driver.registry.register(f"{schema['name']}", json.dumps(schema))
            encode = RegisteredEncoder(registered, in_header=False)
            driver.pipe("events", encode(value))
        assert driver.store("paid") == {"a": {"total": 5}}
        (letter,) = driver.dead_letters()
        assert letter.headers["sluice.reason"] == "schema"
        assert "no class for the record bank.Closed" in letter.headers["sluice.detail"]


def test_many_values_of_which_some_name_no_schema() -> None:
    """The results and the order of dead letters are those of single values."""
    pipeline = Pipeline("many")
    sales = pipeline.stream("sales", value=Avro(AmountPaid), key="account")
    sales.group_by_key().aggregate(store="paid", total="sum(amount)")
    with TopologyTestDriver(pipeline) as driver:
        records: list[Any] = [{"account": "a", "amount": number} for number in range(100)]
        for place in (3, 50, 97):
            records.insert(place, b'{"number": %d}' % place)
        for record in records:
            driver.pipe("sales", record)
        assert driver.store("paid") == {"a": {"total": sum(range(100))}}
        letters = driver.dead_letters()
    assert [letter.value["number"] for letter in letters] == [3, 50, 97]
    assert {letter.headers["sluice.reason"] for letter in letters} == {"no_schema"}
