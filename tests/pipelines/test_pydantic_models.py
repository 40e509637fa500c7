"""Values may be declared as pydantic models."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from sluice import Context, Decimal2, Pipeline, Record, Stream, Timer
from sluice.testing import TopologyTestDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Card(BaseModel):
    kind: Literal["card"] = "card"
    digits: Annotated[str, Field(pattern=r"^\d{4}$")]


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    currency: str = "EUR"


class Line(BaseModel):
    product: str
    price: Decimal2
    colour: Colour | None = None


class Order(BaseModel):
    """An order, whose amount the shop sends in cents."""

    model_config = ConfigDict(alias_generator=to_camel)

    order_id: int = Field(gt=0)
    customer: Annotated[str, AfterValidator(str.title)]
    amount: Decimal = Field(max_digits=12, decimal_places=2)
    at: datetime
    day: date | None = None
    lines: list[Line] = []
    by_shelf: dict[str, Line] = {}
    payment: Card | Cash = Field(default=Cash(), discriminator="kind")
    tags: set[str] = set()
    _seen: int = PrivateAttr(default=0)

    @field_validator("amount", mode="before")
    @classmethod
    def _in_euros(cls, cents: Any) -> Any:
        return Decimal(cents) / 100 if isinstance(cents, int) else cents

    @model_validator(mode="after")
    def _has_no_free_lines(self) -> Order:
        if any(line.price == 0 for line in self.lines):
            raise ValueError("a line is free")
        return self


ORDER = {
    "orderId": 1, "customer": "ann lee", "amount": 1250, "at": "2024-05-01T10:00:00Z",
    "lines": [{"product": "tea", "price": 2.5, "colour": "red"}],
    "byShelf": {"a": {"product": "milk", "price": "1.25"}},
    "payment": {"kind": "card", "digits": "4242"}, "tags": ["x", "a"], "unknown": [1],
}  # fmt: skip
WRITTEN = {
    "orderId": 1, "customer": "Ann Lee", "amount": 12.5, "at": "2024-05-01T10:00:00.000000Z", "day": None,
    "lines": [{"product": "tea", "price": 2.5, "colour": "red"}],
    "byShelf": {"a": {"product": "milk", "price": 1.25, "colour": None}}, "tags": ["a", "x"],
}  # fmt: skip


def test_a_model_is_validated_once_and_given_to_functions_and_sql(
    session: SparkSession | None,
) -> None:
    def with_bonus(order: Order) -> Order:
        order._seen += 1
        return order.model_copy(update={"order_id": order.order_id + order._seen})

    def first_colour(order: Order) -> str:
        assert type(order.lines[0]) is Line
        assert order.lines[0].colour is Colour.RED
        assert order.payment == Card(digits="4242")
        assert order.tags == {"a", "x"}
        return f"{order.amount} {order.at:%H} {order.by_shelf['a'].price}"

    pipeline = Pipeline("orders", workers=2)
    orders = pipeline.stream("orders", value=Order, key="orderId", event_time="at")
    orders.to("copies")
    orders.filter(lambda order: order.order_id == 1).map_values(first_colour, returns=str).to(
        "colours", value=str
    )
    bonus: Stream[Order] = orders.map_values(with_bonus, returns=Order).map_values(
        with_bonus, returns=Order
    )
    bonus.filter("amount > 12 AND payment.digits = '4242' AND lines[0].colour = 'red'").to("bonus")
    orders.group_by("customer").aggregate(
        store="spent", total="sum(amount)", shelf="max(byShelf['a'].price)"
    )
    with TopologyTestDriver(pipeline, spark=session) as driver:
        driver.pipe("orders", ORDER)
        payment = {"payment": {"kind": "card", "digits": "4242", "currency": None}}
        (copy,) = [record.value for record in driver.output("copies")]
        assert copy == WRITTEN | payment
        assert [record.value for record in driver.output("colours")] == ["12.50 10 1.25"]
        assert [record.value for record in driver.output("bonus")] == [
            WRITTEN | payment | {"orderId": 3}
        ]
        assert driver.store("spent") == {"Ann Lee": {"total": 12.5, "shelf": 1.25}}


def test_what_pydantic_rejects_is_a_dead_letter_that_names_the_field(
    session: SparkSession | None,
) -> None:
    pipeline = Pipeline("orders", workers=2)
    pipeline.stream("orders", value=Order).to("copies")
    with TopologyTestDriver(pipeline, spark=session) as driver:
        for wrong in (
            {"orderId": 0}, {"lines": [{"product": "tea", "price": 0}]}, {"amount": 12.555},
            {"payment": {"kind": "cheque"}}, {"orderId": "x", "customer": 1, "at": None, "day": "x"},
            {"lines": [{"product": "tea", "price": 2.555}]},
        ):  # fmt: skip
            driver.pipe("orders", ORDER | wrong)
        for text in (
            '{"orderId": ',
            "[]",
            '{"orderId": 1, "orderId": 2}',
            b'{"orderId": "\xff"}',
            "",
        ):
            driver.pipe("orders", text)
        letters = [
            (r.headers["sluice.reason"], r.headers["sluice.detail"]) for r in driver.dead_letters()
        ]
    assert letters[:6] == [
        ("contract", "$.orderId: Input should be greater than 0"),
        ("contract", "$: Value error, a line is free"),
        ("contract", "$.amount: Decimal input should have no more than 2 decimal places"),
        ("contract", "$.payment: Input tag 'cheque' found using 'kind' does not match any of the expected tags: "
         "'card', 'cash'"),
        ("contract", "$.orderId: Input should be a valid integer, unable to parse string as an integer; "
         "$.customer: Input should be a valid string; $.at: Input should be a valid datetime; and 1 other error"),
        ("digits", "$.lines[...].price: 2.555 is not a decimal(12,2)"),
    ]  # fmt: skip
    assert [reason for reason, _ in letters[6:]] == [
        "malformed",
        "contract",
        "contract",
        "not_utf8",
        "empty_value",
    ]


class Measured(BaseModel):
    amount: Decimal = Field(Decimal(0), max_digits=30, decimal_places=20)
    details: Any = None
    points: list[Any] = []
    name: str = ""


def test_only_decimals_have_more_digits_than_floats() -> None:
    pipeline = Pipeline("measured", workers=2)
    measured = pipeline.stream("measured", value=Measured)
    measured.to("copies")
    measured.map_values("CAST(amount AS STRING)").to("amounts")
    number = "-0.12345678901234567891"
    with TopologyTestDriver(pipeline) as driver:
        for name in ("amount", "details", "name"):
            driver.pipe("measured", f'{{"{name}": {number}}}')
        driver.pipe(
            "measured", f'{{"amount": {number}, "points": [{{"x": {number}}}, "{number}"]}}'
        )
        copies = [record.value for record in driver.output("copies")]
        amounts = [record.value for record in driver.output("amounts")]
        (letter,) = driver.dead_letters()
    assert amounts == [number, f"{Decimal(0):.20f}", number]
    assert copies[1]["details"] == float(number)
    assert copies[2]["points"] == [{"x": float(number)}, number]
    assert letter.headers["sluice.detail"] == "Expected `str`, got `float` - at `$.name`"


class Opened(BaseModel):
    kind: Literal["opened"] = "opened"
    account: str


class Paid(BaseModel):
    kind: Literal["paid"] = "paid"
    account: str
    amount: Decimal = Field(gt=0, max_digits=25, decimal_places=10)


class Balance(BaseModel):
    model_config = ConfigDict(frozen=True)

    total: Annotated[Decimal, Field(max_digits=30, decimal_places=10)] = Decimal(0)
    events: list[Opened | Paid] = Field(default_factory=list, max_length=3)


class Remember:
    """Keeps the last event of an account, and sends the event before it."""

    def init(self, context: Context) -> None:
        self.context = context
        self.last = context.store("last")
        self.balances = context.store("own")

    def process(self, record: Record[Opened | Paid]) -> None:
        before: Opened | Paid | None = self.last.get("event")
        assert record.key is not None
        if before is not None:
            assert type(before) in (Opened, Paid)
            self.context.forward(record.key, before, to="before")
        self.last.put("event", record.value)
        # A store takes a dict in place of a model, and validates it.
        self.balances.put(record.key, {"events": [record.value]})
        balance: Balance | None = self.balances.get(record.key)
        assert balance is not None
        assert type(balance.events[0]) is type(record.value)

    def on_timer(self, timer: Timer) -> None: ...


def added(balance: Balance, event: Opened | Paid) -> Any:
    amount = event.amount if isinstance(event, Paid) else Decimal(0)
    # pydantic counts the events of a new model only if it validates them.
    return {"total": balance.total + amount, "events": [*balance.events, event]}


def test_states_hold_models_from_batch_to_batch(session: SparkSession | None) -> None:
    pipeline = Pipeline("accounts", workers=2)
    events: Stream[Opened | Paid] = pipeline.stream("events", value=Opened | Paid, key="account")
    balances = events.group_by_key().aggregate(Balance, added, returns=Balance, store="balances")
    balances.to_stream().map_values("CAST(total AS STRING)").to("totals")
    stores: Any = {"last": (Opened | Paid, "1 day"), "own": (Balance, "1 day")}
    events.process(Remember, stores=stores, outputs={"before": Opened | Paid})["before"].to(
        "before"
    )
    with TopologyTestDriver(pipeline, spark=session) as driver:
        driver.pipe("events", Opened(account="x"))
        for amount in ("0.1234567891", "1234567890123451234567891e-10", "1"):
            driver.commit()
            driver.pipe("events", f'{{"kind": "paid", "account": "x", "amount": {amount}}}')
        driver.pipe("events", '{"kind": "moved", "account": "x"}')
        assert [record.value["kind"] for record in driver.output("before")] == [
            "opened",
            "paid",
            "paid",
        ]
        totals = [record.value for record in driver.output("totals")]
        letters = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    assert totals == ["0.0000000000", "0.1234567891", "123456789012345.2469135782"]
    assert letters[0].startswith("$: Input tag 'moved' found using 'kind'")
    assert "$.events: List should have at most 3 items" in letters[1]
