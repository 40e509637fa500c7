"""Values may be declared as dataclasses, as TypedDicts, and as unions of tagged Structs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pytest
from msgspec import Struct

from sluice import Decimal2, Pipeline, Stream
from sluice.errors import TopologyError
from sluice.testing import TopologyTestDriver
from sluice.values.epochs import EpochMillis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Line:
    product: str
    amount: Decimal2


@dataclass
class Basket:
    customer: str
    lines: list[Line]
    at: EpochMillis
    tags: list[str] = field(default_factory=list)


class Reading(TypedDict):
    sensor: str
    celsius: float
    note: NotRequired[str | None]


class Opened(Struct, tag="opened"):
    account: str
    owner: str


class Paid(Struct, tag="paid"):
    account: str
    amount: Decimal2


class Closed(Struct, tag="closed"):
    account: str
    reason: str | None = None


BASKET = {
    "customer": "ann",
    "lines": [{"product": "tea", "amount": "2.50"}],
    "at": 1_700_000_000_000,
}


def test_a_dataclass_is_decoded_strictly_and_given_to_functions_and_sql(
    session: SparkSession | None,
) -> None:
    pipeline = Pipeline("baskets", workers=2)
    baskets = pipeline.stream("baskets", value=Basket, key="customer", event_time="at")
    baskets.map_values(lambda basket: basket.lines[0], returns=Line).to("first_lines")
    baskets.group_by_key().aggregate(store="spent", total="sum(lines[0].amount)", latest="max(at)")
    with TopologyTestDriver(pipeline, spark=session) as driver:
        driver.pipe("baskets", BASKET)
        driver.pipe("baskets", BASKET | {"lines": [{"product": "tea"}]})
        driver.pipe("baskets", BASKET | {"lines": [{"product": "tea", "amount": "2.555"}]})
        driver.pipe(
            "baskets",
            Basket("ann", [Line("milk", Decimal("1.25"))], datetime(2023, 11, 14, tzinfo=UTC)),
        )
        assert [record.value for record in driver.output("first_lines")] == [
            {"product": "tea", "amount": 2.5},
            {"product": "milk", "amount": 1.25},
        ]
        assert driver.store("spent")["ann"]["total"] == 3.75
        reasons = [letter.headers["sluice.reason"] for letter in driver.dead_letters()]
        assert reasons == ["contract", "digits"]


def test_a_typed_dict_may_leave_out_fields(session: SparkSession | None) -> None:
    def note(reading: Any) -> Any:
        return reading["note"] or "none"

    pipeline = Pipeline("readings", workers=2)
    readings = pipeline.stream("readings", value=Reading, key="sensor")
    readings.map_values(note, returns=str).to("notes")
    readings.filter("note IS NULL").group_by_key().count(store="without_note")
    with TopologyTestDriver(pipeline, spark=session) as driver:
        driver.pipe("readings", {"sensor": "a", "celsius": 20.5})
        driver.pipe("readings", {"sensor": "a", "celsius": 21.0, "note": "window open"})
        driver.pipe("readings", {"sensor": "a"})
        assert driver.store("without_note") == {"a": 1}
        assert [record.value for record in driver.output("notes")] == ["none", "window open"]
        assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == ["contract"]


class Measured(TypedDict):
    sensor: str
    at: EpochMillis


def test_a_test_writes_a_dict_as_the_contract_reads_it(session: SparkSession | None) -> None:
    at = datetime(2023, 11, 14, tzinfo=UTC)
    measured: Measured = {"sensor": "a", "at": at}
    pipeline = Pipeline("measured", workers=2)
    pipeline.stream("measured", value=Measured, event_time="at").select(hours="hour(at)").to(
        "hours"
    )
    pipeline.stream("baskets", value=Basket).select(hours="hour(at)").to("basket_hours")
    with TopologyTestDriver(pipeline, spark=session) as driver:
        driver.pipe("measured", measured)
        driver.pipe("baskets", BASKET | {"at": at})
        (record,) = driver.output("hours")
        assert (record.value, record.timestamp) == ({"hours": 0}, 1_699_920_000_000)
        assert [record.value for record in driver.output("basket_hours")] == [{"hours": 0}]


def test_a_field_that_may_be_left_out_must_allow_none() -> None:
    class Strict(TypedDict):
        sensor: str
        note: NotRequired[str]

    with pytest.raises(
        TopologyError,
        match=r"Strict\.note: if a record leaves this field out, Python functions get None",
    ):
        Pipeline("readings").stream("readings", value=Strict)


def test_each_member_of_a_union_reaches_functions_as_its_own_class(
    session: SparkSession | None,
) -> None:
    def change(event: Opened | Paid | Closed) -> str:
        match event:
            case Opened(owner=owner):
                return f"opened by {owner}"
            case Paid(amount=amount):
                return f"paid {amount}"
            case Closed(reason=reason):
                return f"closed: {reason}"

    pipeline = Pipeline("accounts", workers=2)
    events: Stream[Opened | Paid | Closed] = pipeline.stream(
        "events", value=Opened | Paid | Closed, key="account"
    )
    events.map_values(change, returns=str).to("changes")
    events.filter("type = 'paid'").group_by_key().aggregate(store="balances", balance="sum(amount)")
    events.filter("type = 'closed'").select("account", "reason").to("closed")
    with TopologyTestDriver(pipeline, spark=session) as driver:
        driver.pipe("events", Opened("x", "ann"))
        driver.pipe("events", Paid("x", Decimal("2.50")))
        driver.pipe("events", {"type": "paid", "account": "x", "amount": "0.555"})
        driver.pipe("events", {"type": "moved", "account": "x"})
        driver.pipe("events", Closed("x"))
        assert [record.value for record in driver.output("changes")] == [
            "opened by ann",
            "paid 2.50",
            "closed: None",
        ]
        assert driver.store("balances") == {"x": {"balance": 2.5}}
        assert [record.value for record in driver.output("closed")] == [
            {"account": "x", "reason": None}
        ]
        assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == [
            "digits",
            "contract",
        ]


def test_members_of_a_union_agree_on_the_types_of_their_fields() -> None:
    class Refunded(Struct, tag="refunded"):
        account: str
        amount: int

    with pytest.raises(
        TopologyError,
        match=r"the field amount is DECIMAL\(12,2\) in one member .* BIGINT in another",
    ):
        Pipeline("accounts").stream("events", value=Paid | Refunded)


def test_a_member_of_a_union_cannot_forbid_the_fields_of_other_members() -> None:
    class Moved(Struct, tag="moved", forbid_unknown_fields=True):
        account: str

    with pytest.raises(
        TopologyError, match=r"Moved forbids unknown fields, but in SQL each value has the fields"
    ):
        Pipeline("accounts").stream("events", value=Paid | Moved)


def test_a_union_of_untagged_structs_is_refused() -> None:
    class Left(Struct):
        x: int

    class Right(Struct):
        y: int

    with pytest.raises(TopologyError, match="must be tagged"):
        Pipeline("sides").stream("sides", value=Left | Right)
