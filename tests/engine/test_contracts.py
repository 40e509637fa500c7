"""Pydantic models, and unparsed JSON, in runs with a broker."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, Field, field_validator

from sluice import Context, Pipeline, Record
from tests.engine.conftest import Start
from tests.engine.shop import Names


class Payment(BaseModel):
    payer: str = Field(alias="paidBy", min_length=1)
    amount: Decimal = Field(gt=0, max_digits=12, decimal_places=2)

    @field_validator("amount", mode="before")
    @classmethod
    def _in_euros(cls, cents: int) -> Decimal:
        return Decimal(cents) / 100


class Click(Struct):
    page: str
    details: Any


class Highest:
    """Keeps the highest payment of a payer, and sends it."""

    def init(self, context: Context) -> None:
        self.context, self.kept = context, context.store("kept")

    def process(self, record: Record[Payment]) -> None:
        before: Payment | None = self.kept.get("highest")
        if before is None or record.value.amount > before.amount:
            self.kept.put("highest", record.value)
        self.context.forward(record.key, self.kept.get("highest"))


def models(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    payments = pipeline.stream(names("payments"), value=Payment, key="paidBy")
    payments.filter(lambda payment: payment.amount > 1).to(names("large"))
    stores = {"kept": Payment}
    payments.process(Highest, stores=stores, queryable=False, returns=Payment).output.to(
        names("highest")
    )
    clicks = pipeline.stream(names("clicks"), value=Click, key="page")
    clicks.select("details", length="length(details._json)").to(names("details"))
    clicks.to_table(store=names("latest")).to(names("copies"))
    return pipeline


def test_a_repeated_batch_writes_the_same_values_once(start: Start) -> None:
    running = start(models)
    details = '[1.50,  12345678901234567890, {"b":1, "a":"\\u00e9"}]'
    running.send("payments", b'{"paidBy": "Ann", "amount": 250}', b'{"paidBy": "", "amount": 1}')
    running.send("clicks", f'{{"page": "home", "details": {details}}}'.encode())
    running.run()
    running.send("payments", b'{"paidBy": "Ann", "amount": 90}')
    running.crash_before_publishing()
    assert running.run() == 1
    assert running.output("large") == [("Ann", {"paidBy": "Ann", "amount": 2.5})]
    assert running.output("highest") == [("Ann", {"paidBy": "Ann", "amount": 2.5})] * 2
    assert running.reasons() == ["contract"]
    (written,) = running.messages(running.names("details"))
    assert (written.value() or b"").decode() == f'{{"details":{details},"length":{len(details)}}}'
    (copy,) = running.messages(running.names("copies"))
    assert (copy.value() or b"").decode() == f'{{"page":"home","details":{details}}}'
