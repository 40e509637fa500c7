"""Values and fields of type Any keep their JSON exactly, from topic to topic and in stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NotRequired, TypedDict

import pytest
from msgspec import Struct
from pydantic import BaseModel

from sluice import (
    Context,
    Decimal2,
    DeltaTable,
    EpochMillis,
    Pipeline,
    Record,
    Stream,
    key_text,
    within,
)
from sluice.errors import TopologyError
from sluice.operators.aggregation.calculation import Custom
from sluice.operators.encoding import Declared, encode_state
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

ODD = '{"z": 1.50,  "a": [12345678901234567890123, 1E+2, {"deep":"\\u00e9 \\"x\\" {\\"_json\\":\\"1\\"}"}], "z2":null}'
"""JSON that no decoder writes again as it is."""


class Event(Struct, rename="camel"):
    event_id: str
    user: str
    details: Any
    parts: list[Any] = []
    named: dict[str, Any] = {}


class User(Struct):
    user: str
    settings: Any = None


def event(number: int, details: str = ODD) -> str:
    nested = f'"parts":[{details}, null, "x"],"named":{{"n": {details}}}'
    return f'{{"eventId":"e{number}","user":"ann","details":{details},{nested}}}'


def raw(driver: TopologyTestDriver, topic: str) -> list[str]:
    """The values of a topic as they are written."""
    driver.commit()
    return [record["value"] for record in driver._run.output.records.get(topic, [])]


WRITTEN = f'{{"eventId":"e1","user":"ann","details":{ODD},"parts":[{ODD},null,"x"],"named":{{"n":{ODD}}}}}'


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_the_json_stays_as_it_is_through_all_steps(drive: Drive, by_one: bool) -> None:
    def has_deep(event: Event) -> bool:
        assert event.parts == [event.details, None, "x"]
        assert event.named == {"n": event.details}
        return bool(event.details["a"][0] == 12345678901234567890123)

    pipeline = Pipeline("events", workers=2)
    events: Stream[Event] = pipeline.stream("events", value=Event, key="user")
    users = pipeline.table("users", value=User, key="user")
    events.filter("eventId <> 'e2'").filter(has_deep).to("copies")
    events.filter("eventId = 'e1'").select("details", part="parts[0]", name="upper(user)").to(
        "selected"
    )
    events.join(users).select(details="left.details", settings="right.settings").to("joined")
    events.filter("eventId = 'e1'").join(events.filter("eventId = 'e1'"), within("1 hour")).to(
        "pairs"
    )
    events.to_table(store="latest").to("changes")
    events.group_by_key().aggregate(store="newest", details="max_by(details, eventId)")
    events.map_values("length(details._json)").to("lengths")
    events.filter("eventId = 'e1'").flat_map_values("parts").to("items")
    events.filter("eventId = 'e1'").flat_map_values("parts").filter("value._json LIKE '%deep%'").to(
        "deep_items"
    )
    driver = drive(pipeline)
    driver.pipe("users", f'{{"user": "ann", "settings":  {ODD}}}')
    for value in (event(1), event(2, "7"), '{"eventId":"e3","user":"ann","details":[01]}'):
        if by_one:
            driver.commit()
        driver.pipe("events", value)
    assert raw(driver, "copies") == [WRITTEN]
    assert raw(driver, "selected") == [f'{{"details":{ODD},"part":{ODD},"name":"ANN"}}']
    assert raw(driver, "joined") == [
        f'{{"details":{details},"settings":{ODD}}}' for details in (ODD, "7")
    ]
    assert raw(driver, "pairs") == [f'{{"left":{WRITTEN},"right":{WRITTEN}}}']
    assert raw(driver, "changes") == [WRITTEN, WRITTEN.replace("e1", "e2").replace(ODD, "7")]
    assert raw(driver, "items") == [ODD, None, '"x"']
    assert raw(driver, "deep_items") == [ODD]
    assert raw(driver, "lengths") == [str(len(ODD)), "1"]
    assert driver.store("users")["ann"]["settings"]["a"][0] == 12345678901234567890123
    assert driver.store("latest")["ann"]["parts"] == [7, None, "x"]
    assert driver.store("newest") == {"ann": {"details": 7}}
    assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == ["malformed"]


@dataclass
class Reading:
    sensor: str
    at: EpochMillis
    extra: Any = None
    tags: dict[str, Any] = field(default_factory=dict)


class Visit(TypedDict):
    page: str
    referrer: NotRequired[Any]
    cookies: list[Any]


class Opened(Struct, tag="opened"):
    account: str
    by: Any


class Paid(Struct, tag="paid"):
    account: str
    amount: Decimal2


class Invoice(BaseModel):
    number: int
    lines: list[Any]


class Remember:
    """Sends the last value of a key, and then keeps the new one."""

    def init(self, context: Context) -> None:
        self.context, self.last = context, context.store("last")

    def process(self, record: Record[Reading]) -> None:
        self.context.forward(record.key, self.last.get("reading"))
        self.last.put("reading", record.value)


AT = datetime(2024, 1, 1, tzinfo=UTC)
BIG = '{"b": [9007199254740993, {"c":null}], "a":true}'
"""JSON that a function can read and write again, except for the spaces."""
WRITTEN_BIG = BIG.replace(" ", "")


def test_functions_and_states_get_the_decoded_value(drive: Drive) -> None:
    decoded = {"b": [9007199254740993, {"c": None}], "a": True}

    def checked(reading: Reading) -> Reading:
        assert type(reading) is Reading
        assert reading.extra == decoded
        assert reading.tags == {"x": decoded, "y": None}
        return Reading(reading.sensor, reading.at, reading.tags["x"])

    def name(event: Opened | Paid) -> str:
        return f"opened by {event.by}" if isinstance(event, Opened) else f"paid {event.amount}"

    def cookies(visit: Visit) -> Any:
        return [*visit["cookies"], visit["referrer"]]

    pipeline = Pipeline("kinds", workers=2)
    readings = pipeline.stream("readings", value=Reading, key="sensor", event_time="at")
    readings.map_values(checked, returns=Reading).filter("extra IS NOT NULL AND size(tags) = 0").to(
        "checked"
    )
    readings.process(Remember, stores={"last": Reading}, returns=Reading).output.to("before")
    readings.group_by_key().reduce(lambda _, reading: reading, store="reduced").to("reduced")
    accounts: Stream[Opened | Paid] = pipeline.stream(
        "accounts", value=Opened | Paid, key="account"
    )
    accounts.map_values(name, returns=str).to("names")
    visits: Stream[Visit] = pipeline.stream("visits", value=Visit)
    visits.map_values(cookies, returns=list[Any]).to("cookies")
    visits.to("visit_copies")
    invoices = pipeline.stream("invoices", value=Invoice)
    invoices.map_values(lambda invoice: invoice.lines, returns=list[Any]).to("lines")
    invoices.to("invoice_copies")
    driver = drive(pipeline)
    reading = f'{{"sensor":"s","at":1700000000000,"extra":{BIG},"tags":{{"x":{BIG},"y":null}}}}'
    for _ in range(2):
        driver.pipe("readings", reading)
        driver.commit()
    driver.pipe("accounts", f'{{"type":"opened","account":"a","by":{BIG}}}')
    driver.pipe("accounts", Paid("a", Decimal("2.50")))
    driver.pipe("visits", f'{{"page":"p","cookies":[{BIG},1.50]}}')
    driver.pipe("invoices", f'{{"number":1,"lines":[{BIG}]}}')
    assert driver.dead_letters() == []
    at = '"at":"2023-11-14T22:13:20.000000Z"'
    checked_once = f'{{"sensor":"s",{at},"extra":{WRITTEN_BIG},"tags":{{}}}}'
    assert raw(driver, "checked") == [checked_once] * 2
    again = f'{{"sensor":"s",{at},"extra":{WRITTEN_BIG},"tags":{{"x":{WRITTEN_BIG},"y":null}}}}'
    assert raw(driver, "before") == [None, again]
    assert raw(driver, "reduced") == [again] * 2
    assert driver.store("last") == {"s": {"reading": {**driver.store("reduced")["s"]}}}
    assert raw(driver, "names") == [f'"opened by {decoded}"', '"paid 2.50"']
    assert raw(driver, "cookies") == [f"[{WRITTEN_BIG},1.5,null]"]
    assert raw(driver, "visit_copies") == [f'{{"page":"p","referrer":null,"cookies":[{BIG},1.50]}}']
    assert raw(driver, "lines") == [f"[{WRITTEN_BIG}]"]
    assert raw(driver, "invoice_copies") == [f'{{"number":1,"lines":[{WRITTEN_BIG}]}}']


def test_a_whole_value_of_type_any_stays_as_it_is(drive: Drive) -> None:
    pipeline = Pipeline("whole", workers=2)
    values: Stream[Any] = pipeline.stream("values", value=Any)
    values.to("copies")
    values.filter("value._json LIKE '%deep%'").to("deep")
    values.filter(lambda value: value == 7).map_values(lambda value: value + 1, returns=int).to(
        "eight"
    )
    values.to_table(store="latest").to("changes")
    shops: Stream[Any] = pipeline.stream("shops", value=Any)
    shops.join(pipeline.global_table("names", value=Any), on="_key").to("joined")
    driver = drive(pipeline)
    driver.pipe("names", ODD, key="k")
    driver.pipe("shops", ' "x" ', key="k")
    for text in (ODD, "7", "[] ", '"\\u00e9"', "{", "null"):
        driver.pipe("values", text, key="k")
    assert raw(driver, "copies") == [ODD, "7", "[]", '"\\u00e9"', "null"]
    assert raw(driver, "deep") == [ODD]
    assert raw(driver, "eight") == ["8"]
    assert raw(driver, "joined") == [f'{{"left":"x","right":{ODD}}}']
    assert [letter.headers["sluice.reason"] for letter in driver.dead_letters()] == ["malformed"]


class Note(BaseModel):
    text: str
    details: Any = None


def test_a_model_has_plain_json_where_it_is_written_as_any_or_piped() -> None:
    def with_note(user: User) -> User:
        return User(user.user, [Note(text="x", details={"a": 1.5})])

    pipeline = Pipeline("notes", workers=2)
    pipeline.stream("notes", value=Note).to("copies")
    pipeline.stream("others", value=Any).to("other_copies")
    pipeline.stream("users", value=User).map_values(with_note, returns=User).to("noted")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("notes", Note(text="x", details=[1.5]))
        driver.pipe("others", Note(text="x", details=[1.5]))
        driver.pipe("users", {"user": "ann"})
        assert (
            raw(driver, "copies") == raw(driver, "other_copies") == ['{"text":"x","details":[1.5]}']
        )
        assert key_text(Note(text="x", details=[1.5])) == '{"details":[1.5],"text":"x"}'
        assert raw(driver, "noted") == [
            '{"user":"ann","settings":[{"text":"x","details":{"a":1.5}}]}'
        ]


def test_a_number_that_no_query_could_decode_does_not_get_into_a_store() -> None:
    pipeline = Pipeline("large", workers=2)
    pipeline.stream("events", value=Event, key="user").to_table(store="latest")
    pipeline.stream("values", value=Any).to("copies")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("events", event(1))
        driver.pipe("events", event(2, '[{"x": 1e400}]'))
        driver.pipe("values", "-1e400")
        assert driver.store("latest")["ann"]["eventId"] == "e1"
        assert driver.output("copies") == []
        letters = [letter.headers["sluice.detail"] for letter in driver.dead_letters()]
    assert letters == [
        "Number out of range - at `$[0][...]` - at `$.details`",
        "Number out of range",
    ]


@pytest.mark.spark
def test_spark_looks_into_the_json(drive: Drive) -> None:
    pipeline = Pipeline("deep", workers=2)
    events = pipeline.stream("events", value=Event, key="user")
    events.select("details", deep="get_json_object(details._json, '$.a[2].deep')").to("deep")
    driver = drive(pipeline)
    driver.pipe("events", event(1))
    driver.pipe("events", event(2, "null"))
    deep = '"é \\"x\\" {\\"_json\\":\\"1\\"}"'
    assert raw(driver, "deep") == [
        f'{{"details":{ODD},"deep":{deep}}}',
        '{"details":null,"deep":null}',
    ]


def test_wrong_uses_of_any_are_errors() -> None:
    class Reserved(Struct):
        _json: str

    pipeline = Pipeline("wrong")
    with pytest.raises(TopologyError, match="the key details contains unparsed JSON"):
        pipeline.stream("events", value=Event, key="details")
    with pytest.raises(TopologyError, match=r"'details' contains unparsed JSON.* details\._json"):
        pipeline.stream("grouped", value=Event).group_by("details")
    keyed = pipeline.stream("keyed", value=Event)
    for wrong_key in (
        lambda: keyed.select_key("details"),
        lambda: keyed.select_key(["user", "details"]),
        lambda: keyed.select("user", _key="details"),
        lambda: keyed.select("user", _key={"by": "details"}),
        lambda: keyed.deduplicate("details", within="1 day"),
        lambda: keyed.join(pipeline.global_table("users", value=User), on="struct(details)"),
    ):
        with pytest.raises(TopologyError, match=r"unparsed JSON.* Use the text .*: details\._json"):
            wrong_key()
    with pytest.raises(TopologyError, match="the name _json is reserved by Sluice"):
        pipeline.stream("reserved", value=Reserved)
    events = pipeline.stream("events2", value=Event)
    with pytest.raises(
        TopologyError,
        match=r"details has values of type Any.*select\(\.\.\., details='details\._json'\)",
    ):
        events.to(DeltaTable("/tmp/events"))
    with pytest.raises(
        TopologyError, match=r"returns=Any is a type only of topics' values.* Leave it out"
    ):
        events.map_values(lambda event: event.details, returns=Any)


@pytest.mark.parametrize(
    ("details", "says"),
    [
        (float("nan"), "nan cannot be written as JSON"),
        ([{"x": float("inf")}, None], "inf cannot be written as JSON"),
        ({1: "a", "1": "b"}, "two keys of a dict have the same name in JSON"),
        (object(), "object is unsupported"),
    ],
)
def test_a_value_that_json_cannot_hold_is_refused(details: Any, says: str) -> None:
    for kind, value in (
        (Reading, Reading("s", AT, details)),
        (Invoice, Invoice(number=1, lines=[details])),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            Declared(kind).json(value)


class Basket(BaseModel):
    items: set[int]
    notes: Any = None


@dataclass(frozen=True)
class Tour:
    pages: list[int]
    extra: Any = None


@pytest.mark.parametrize(
    ("kind", "make", "json"),
    [
        (None, lambda pages: {"pages": [pages]}, '{"pages":[[0,8]]}'),
        (None, lambda pages: Basket(items=pages, notes=pages), '{"items":[0,8],"notes":[0,8]}'),
        (list[int], lambda pages: pages, "[0,8]"),
        (
            Tour,
            lambda pages: Tour([1], frozenset(pages)),
            '{"pages":[1],"extra":{"_json":"[0,8]"}}',
        ),
        (Tour, lambda pages: {"pages": pages}, '{"pages":[0,8],"extra":null}'),
        (
            Basket,
            lambda pages: {"items": pages, "notes": [pages]},
            '{"items":[0,8],"notes":{"_json":"[[0,8]]"}}',
        ),
    ],
)
def test_a_set_is_written_as_a_sorted_list(kind: Any, make: Any, json: str) -> None:
    # These sets are equal, but Python lists their items in different orders.
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert [Declared(kind).json(make(pages)) for pages in (one, other)] == [json, json]


def test_the_state_of_a_value_with_a_set_does_not_depend_on_the_order_of_the_set() -> None:
    aggregate = Custom(lambda: Tour([]), lambda key, tour, pages: Tour([1], pages), value_type=Tour)
    states = [encode_state(aggregate.add("a", None, pages)) for pages in ({0, 8}, {8, 0})]
    assert states[0] == states[1]
