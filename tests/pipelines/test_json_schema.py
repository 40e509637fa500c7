"""Pipelines that read and write JSON whose schema is in a registry."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from msgspec import Struct

from sluice import Decimal2, JsonSchema, Pipeline
from sluice.testing import TopologyTestDriver

pytestmark = pytest.mark.pipelines


class Payment(Struct):
    payer: str
    amount: Decimal2
    note: str | None = None


def payments(**options: Any) -> Pipeline:
    pipeline = Pipeline("bank")
    read = pipeline.stream("payments", value=JsonSchema(Payment, **options), key="payer")
    read.filter("amount > 1").to("large", value=JsonSchema(Payment, **options))
    read.group_by_key().aggregate(store="paid", total="sum(amount)")
    return pipeline


@pytest.mark.parametrize("count", [1, 150], ids=["one by one", "as columns"])
def test_values_are_json_after_the_id(count: int) -> None:
    with TopologyTestDriver(payments()) as driver:
        for _ in range(count):
            driver.pipe("payments", {"payer": "Ann", "amount": Decimal("2.50")})
        expected = {"payer": "Ann", "amount": 2.5, "note": None}
        assert [output.value for output in driver.read("large")] == [expected] * count
        assert driver.store("paid") == {"Ann": {"total": 2.5 * count}}
        written = driver._run.output.records["large"][0]["value"]
        assert written[:5] == b"\0\0\0\0\2"
        assert driver.registry.schema(2).kind == "JSON"


@pytest.mark.parametrize("copies", [1, 150], ids=["one by one", "as columns"])
def test_invalid_json_is_a_dead_letter_with_the_reason_of_other_json(copies: int) -> None:
    with TopologyTestDriver(payments()) as driver:
        for _ in range(copies):
            driver.pipe("payments", {"payer": "Ann", "amount": Decimal("2.50")})
        for text in (
            b"{",
            b'{"payer": 1, "amount": 2}',
            b'{"payer": "a", "payer": "b", "amount": 1}',
        ):
            driver.pipe("payments", b"\0\0\0\0\1" + text)
        driver.pipe("payments", b'{"payer": "Ann", "amount": 2}')
        driver.pipe("payments", b'\0\0\0\0\7{"payer": "Ann", "amount": 2}')
        reasons = [letter.headers["sluice.reason"] for letter in driver.dead_letters()]
    assert reasons == ["malformed", "contract", "duplicate_field", "no_schema", "unknown_schema"]


def test_values_may_be_checked_against_the_schema() -> None:
    with TopologyTestDriver(payments(validate=True)) as driver:
        strict = (
            '{"type": "object", "properties": {"payer": {"type": "string", "format": "email"}}}'
        )
        schema = driver.registry.register("payments-value", strict, "JSON")
        driver.pipe("payments", {"payer": "Ann", "amount": 3})
        driver.pipe("payments", {"payer": "ann@example.org", "amount": 3})
        (letter,) = driver.dead_letters()
        assert letter.headers["sluice.detail"] == (
            f"$.payer: 'Ann' is not a 'email' - by schema {schema.id} (payments-value, version 2)"
        )
        assert [output.key for output in driver.read("large")] == ["ann@example.org"]
