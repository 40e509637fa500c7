"""Processors: stores, timers and outputs; and deduplication."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec import Struct

from sluice import (
    Context,
    Decimal2,
    Pipeline,
    Record,
    Stream,
    Table,
    Timer,
    ValueContext,
    Windowed,
    tumbling,
    windowed_json,
)
from sluice.errors import TopologyError
from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive


class Payment(Struct):
    """An amount, and an id that is the same when the producer sends the payment again."""

    id: str
    amount: Decimal2


class Balance(Struct):
    """The sum of the payments so far, and the seconds since the payment before."""

    total: Decimal2
    since: float | None


class Account:
    """Adds payments, and reports a minute of event time or an hour of the wall clock without a payment."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record) -> None:
        payment: Payment = record.value
        sums, seen = self.context.store("sums"), self.context.store("seen")
        total = sums.get("total", Decimal(0)) + payment.amount
        sums.put("total", total)
        last: datetime | None = seen.get("last")
        now = datetime(1970, 1, 1) + timedelta(milliseconds=record.time)
        seen.put("last", now)
        self.context.schedule("quiet", record.time + 60_000)
        self.context.schedule("asleep", 0, clock="wall", every=3_600_000)
        since = None if last is None else (now - last).total_seconds()
        self.context.forward(record.key, Balance(total, since))

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, timer.name, to=timer.clock)


HALF_AN_HOUR = 1_800_000
"""In ms."""


def accounts(returns: type[Balance] | None = Balance) -> Pipeline:
    """Without `returns`, only Spark reads the results."""
    pipeline = Pipeline("accounts", workers=2)
    payments = pipeline.stream("payments", value=Payment).deduplicate("id", within="10 seconds")
    stores = {"sums": Decimal, "seen": (datetime, "2 minutes")}
    account = payments.process(
        Account, stores=stores, outputs={"event": str, "wall": str}, returns=returns
    )
    account.output.to("sums")
    account["event"].to("quiet", value=str)
    account["wall"].to("asleep", value=str)
    return pipeline


def pay(driver: TopologyTestDriver, number: str, amount: float, key: str, at: int) -> None:
    driver.pipe("payments", {"id": number, "amount": amount}, key=key, timestamp=1_000 * at)


def read(driver: TopologyTestDriver, topic: str) -> list[tuple[str | None, Any]]:
    return [(record.key, record.value) for record in driver.read(topic)]


@pytest.mark.spark
def test_a_processor_keeps_its_state_and_does_not_receive_duplicates(drive: Drive) -> None:
    driver = drive(accounts(returns=None))
    pay(driver, "1", 10.5, key="ann", at=0)
    pay(driver, "1", 10.5, key="ann", at=5)
    pay(driver, "2", 1, key="bob", at=6)
    assert read(driver, "sums") == [
        ("ann", {"total": 10.5, "since": None}),
        ("bob", {"total": 1, "since": None}),
    ]
    assert (
        sum(number for name, number in driver.counts().items() if name.startswith("duplicate/"))
        == 1
    )

    pay(driver, "3", 0.25, key="ann", at=30)
    assert read(driver, "sums") == [("ann", {"total": 10.75, "since": 30.0})], (
        "a stored value is read unchanged, in the same batch or a later one"
    )
    assert read(driver, "quiet") == []

    pay(driver, "4", 2, key="bob", at=66)
    assert read(driver, "quiet") == [], "the second payment postponed the timer"
    pay(driver, "5", 2, key="bob", at=90)
    assert read(driver, "quiet") == [("ann", "quiet")], (
        "a record of another key advances stream time"
    )
    pay(driver, "6", 2, key="ann", at=151)
    assert [value["since"] for key, value in read(driver, "sums") if key == "ann"] == [None], (
        "two minutes have passed"
    )


class Numbering:
    """Forwards a record's number among those of its key."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[int]) -> None:
        store = self.context.store("numbers")
        store.put("last", store.get("last", 0) + 1)
        self.context.forward(record.key, [record.value, store.get("last")])


def test_results_of_a_batch_are_in_the_order_of_their_records_whatever_their_keys(
    drive: Drive,
) -> None:
    pipeline = Pipeline("numbers", workers=2)
    stream = pipeline.stream("numbers", value=int)
    stream.process(Numbering, stores={"numbers": int}, returns=list[int]).output.to("numbered")
    stream.group_by_key().aggregate(
        list, lambda seen, value: [*seen, value], store="seen", returns=list[int]
    )
    driver = drive(pipeline)
    keys = ["b", "a", "c", "a", "b", "b", "a", "c"]
    for number, key in enumerate(keys):
        driver.pipe("numbers", number, key=key, timestamp=1_000 - number)
    assert read(driver, "numbered") == [
        (key, [number, keys[: number + 1].count(key)]) for number, key in enumerate(keys)
    ]
    assert driver.store("seen") == {"a": [1, 3, 6], "b": [0, 4, 5], "c": [2, 7]}


class Reminder:
    """Forwards each value, and a reminder ten seconds after a key's last one."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[int]) -> None:
        self.context.forward(record.key, [record.value, self.context.stream_time])
        if record.key is not None or record.value < 0:
            self.context.schedule("remind", record.time + 10_000)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, [None, timer.time])


@pytest.mark.parametrize("path", ["records", "results"])
def test_a_processor_gets_records_without_a_key(drive: Drive, path: str) -> None:
    pipeline = Pipeline("keyless", workers=2)
    numbers = pipeline.stream("numbers", value=int)
    if path == "results":  # of an operator, which reports stream time in another way
        numbers = numbers.deduplicate("CAST(value AS STRING)", within="1 ms")
    numbers.process(Reminder, returns=list[int | None]).output.to("reminders")
    driver = drive(pipeline)
    for time, key, value in [
        (0, "a", 1),
        (4_000, None, 2),
        (5_000, None, -1),
        (12_000, None, 3),
        (9_000, "b", 4),
    ]:
        driver.pipe("numbers", value, key, timestamp=time)
        if value == 2:
            driver.commit()
    assert read(driver, "reminders") == [
        ("a", [1, 0]), (None, [2, 4_000]), (None, [3, 12_000]), ("a", [None, 10_000]), ("b", [4, 12_000]),
    ], "the record at 12 s advances stream time, although it has no key"  # fmt: skip
    (letter,) = driver.dead_letters()
    assert (letter.key, letter.value) == (None, -1)
    assert "the record has no key" in letter.headers["sluice.detail"]
    assert not any(name.startswith(("null_key", "dropped")) for name in driver.counts())


def test_a_processors_store_can_be_queried(drive: Drive) -> None:
    driver = drive(accounts())
    pay(driver, "1", 10.5, key="ann", at=0)
    pay(driver, "2", 1, key="bob", at=6)
    assert driver.store("sums") == {"ann": {"total": 10.5}, "bob": {"total": 1}}
    assert driver.store("seen")["ann"] == {"last": "1970-01-01T00:00:00.000000Z"}

    pay(driver, "3", 0.25, key="ann", at=30)
    assert driver.store("sums") == {"ann": {"total": 10.75}, "bob": {"total": 1}}
    pay(driver, "4", 2, key="cid", at=200)
    assert driver.store("seen") == {"cid": {"last": "1970-01-01T00:03:20.000000Z"}}, (
        "the other entries have expired after two minutes"
    )
    assert driver.store("sums").keys() == {"ann", "bob", "cid"}


class Hoard:
    """Stores an amount and half of it, which is not a number from 9 on; deletes both on request."""

    def init(self, context: Context) -> None:
        self.kept = context.store("kept")

    def process(self, record: Record) -> None:
        if record.value.id == "forget":
            self.kept.delete("amount")
            self.kept.delete("half")
        else:
            self.kept.put("amount", float(record.value.amount))
            self.kept.put(
                "half", float(record.value.amount) / 2 if record.value.amount < 9 else math.nan
            )


def test_deleted_entries_and_entries_that_json_cannot_represent(drive: Drive) -> None:
    pipeline = Pipeline("hoards", workers=2)
    pipeline.stream("payments", value=Payment).process(Hoard, stores={"kept": Any})
    driver = drive(pipeline)
    pay(driver, "1", 3, key="ann", at=0)
    pay(driver, "2", 4, key="bob", at=0)
    assert driver.store("kept") == {
        "ann": {"amount": 3, "half": 1.5},
        "bob": {"amount": 4, "half": 2},
    }
    pay(driver, "forget", 0, key="ann", at=1)
    pay(driver, "3", 9, key="bob", at=1)
    assert driver.store("kept") == {"bob": {"amount": 4, "half": 2}}
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"] == "ValueError: nan cannot be written as JSON"


def test_names_of_queryable_stores_of_processors_are_unique(drive: Drive) -> None:
    def build(*, queryable: bool) -> Pipeline:
        pipeline = Pipeline("hoards")
        payments = pipeline.stream("payments", value=Payment)
        payments.group_by_key().count(store="kept")
        payments.process(Hoard, stores={"kept": Any}, queryable=queryable)
        return pipeline

    with pytest.raises(
        TopologyError, match=r"hoards: store 'kept' at test_processors\.py:\d+ is already used at"
    ):
        build(queryable=True)
    driver = drive(build(queryable=False))
    pay(driver, "1", 3, key="ann", at=0)
    assert driver.store("kept") == {"ann": 1}


def test_a_timer_of_the_wall_clock_fires_when_the_clock_has_moved(drive: Drive) -> None:
    driver = drive(accounts(), clock=HALF_AN_HOUR)
    pay(driver, "1", 10, key="ann", at=0)
    assert len(read(driver, "asleep")) == 1, "the timer was due at once"
    pay(driver, "2", 1, key="bob", at=1)
    read(driver, "asleep")

    driver.advance(HALF_AN_HOUR)
    assert sorted(read(driver, "asleep")) == [("ann", "asleep"), ("bob", "asleep")], (
        "without a record"
    )
    driver.advance(2 * HALF_AN_HOUR - 1)
    assert read(driver, "asleep") == []
    driver.advance(1)
    assert len(read(driver, "asleep")) == 2, "a timer fires at each full hour"


class Report:
    """Counts records, and reports a key's count when a clock passes a multiple of ten ms."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[int]) -> None:
        counts = self.context.store("counts")
        counts.put("records", counts.get("records", 0) + 1)
        self.context.punctuate("event", 10)
        self.context.punctuate("wall", 10, clock="wall")

    def on_timer(self, timer: Timer) -> None:
        count = self.context.store("counts").get("records")
        self.context.forward(timer.key, f"{timer.clock} {count}", time=timer.now)


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_punctuation_comes_once_for_all_periods_that_have_passed(by_one: bool) -> None:
    pipeline = Pipeline("reports", workers=2)
    numbers = pipeline.stream("numbers", value=int).filter("value > 0")
    numbers.process(Report, stores={"counts": int}, returns=str).output.to("reports")
    with TopologyTestDriver(pipeline, clock=1_003) as driver:

        def reports() -> list[tuple[str, str, int | None]]:
            return [
                (record.key, record.value, record.timestamp) for record in driver.read("reports")
            ]

        # The filtered record of 45 ms reaches no processor, but advances stream time.
        for key, value, time in [
            ("a", 1, 7),
            ("b", 1, 8),
            ("a", 2, 12),
            ("b", 3, 11),
            ("c", 0, 45),
            ("a", 4, 46),
        ]:
            driver.pipe("numbers", value, key, timestamp=time)
            if by_one:
                driver.commit()
        assert reports() == [
            ("a", "event 1", 7), ("a", "event 2", 12), ("b", "event 1", 12),
            ("a", "event 2", 45), ("b", "event 2", 45),
        ]  # fmt: skip
        driver.advance(6)
        assert reports() == []
        driver.advance(30)
        assert sorted(reports()) == [("a", "wall 3", 1_039), ("b", "wall 2", 1_039)]
        driver.advance(1)
        assert sorted(reports()) == [("a", "wall 3", 1_040), ("b", "wall 2", 1_040)]


BEHIND: dict[str, Callable[[Stream[int]], Stream[int]]] = {
    "table": lambda numbers: numbers.to_table(store="newest").to_stream(),
    "reduce": lambda numbers: numbers.group_by_key().reduce(lambda _, new: new, store="newest").to_stream(),
    "deduplicate": lambda numbers: numbers.deduplicate("CAST(_offset AS STRING)", within="1 ms"),
    "merge": lambda numbers: numbers.with_headers({"origin": "'a'"}).filter("_key = 'a'").merge(
        numbers.filter("_key <> 'a'")
    ),
}  # fmt: skip


@pytest.mark.parametrize("step", BEHIND)
@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_all_records_of_a_topic_advance_timers_behind_steps_with_a_state(
    drive: Drive, step: str, by_one: bool
) -> None:
    """As in a task of Kafka Streams, whose records advance the time of all punctuators."""
    pipeline = Pipeline("reports", workers=2)
    numbers = BEHIND[step](pipeline.stream("numbers", value=int)).filter("value > 0")
    numbers.process(Report, stores={"counts": int}, returns=str).output.to("reports")
    driver = drive(pipeline, clock=1_003)
    for key, value, time in [
        ("a", 1, 7),
        ("b", 1, 8),
        ("a", 2, 12),
        ("b", 3, 11),
        ("c", 0, 45),
        ("a", 4, 46),
    ]:
        driver.pipe("numbers", value, key, timestamp=time)
        if by_one:
            driver.commit()
    assert [(record.key, record.value, record.timestamp) for record in driver.read("reports")] == [
        ("a", "event 1", 7), ("a", "event 2", 12), ("b", "event 1", 12),
        ("a", "event 2", 45), ("b", "event 2", 45),
    ]  # fmt: skip


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_timers_behind_final_results_of_windows_need_no_further_result(
    drive: Drive, by_one: bool
) -> None:
    pipeline = Pipeline("final", workers=2)
    windows = (
        pipeline.stream("numbers", value=int)
        .group_by_key()
        .windowed_by(tumbling("10 ms"), emit="window_close")
    )
    counts = windows.count(store="counts_of_windows").to_stream()
    counts.process_values(Later, returns=str).output.to("later", key=windowed_json)
    driver = drive(pipeline)
    for key, time in [("a", 1), ("b", 12), ("c", 20), ("c", 29), ("c", 40)]:
        driver.pipe("numbers", 0, key, timestamp=time)
        if by_one:
            driver.commit()
    assert [(record.key, record.value) for record in driver.read("later")] == [
        ('{"key":"a","start":0,"end":10}', "set at 1, fired at 29"),
        ('{"key":"b","start":10,"end":20}', "set at 12, fired at 40"),
    ], "the record at 29 ms closes no window, and reaches no processor"


class Later:
    """Sets a timer for 20 ms after a window's last record."""

    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record[int, Windowed[str]]) -> None:
        self.context.schedule("later", record.time + 20)

    def on_timer(self, timer: Timer[Windowed[str]]) -> None:
        self.context.forward(f"set at {timer.time - 20}, fired at {timer.now}")


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_of_the_timers_of_a_chain_the_earliest_fires_first(drive: Drive, by_one: bool) -> None:
    pipeline = Pipeline("chain", workers=2)
    reports = (
        pipeline.stream("numbers", value=int)
        .process(Report, stores={"counts": int}, returns=str)
        .output
    )
    reports.filter("value LIKE 'event%'").process(
        Seen, stores={"seen": int}, returns=int
    ).output.to("seen_later")
    driver = drive(pipeline, clock=1_003)
    for time in (5, 30):
        driver.pipe("numbers", 1, "a", timestamp=time)
        if by_one:
            driver.commit()
    assert [(record.value, record.timestamp) for record in driver.read("seen_later")] == [
        (2, 25)
    ], "the second report was due at 10 ms, so it comes before the timer of 25 ms"


class Seen:
    """Sends, 20 ms after each record, how many records it has seen."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[str]) -> None:
        seen = self.context.store("seen")
        seen.put("records", seen.get("records", 0) + 1)
        self.context.schedule(f"after {record.time}", record.time + 20)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, self.context.store("seen").get("records"))


class Numbered:
    """Numbers what it gets of a key. Its timer, which each record sets anew, sends 0."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[int]) -> None:
        numbers = self.context.store("numbers")
        number = numbers.get("last", 0) + 1
        numbers.put("last", number)
        self.context.schedule("later", record.time + 5)
        self.context.forward(record.key, number)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, 0)


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_of_timers_of_a_chain_with_the_same_time_the_last_processors_fires_first(
    drive: Drive, by_one: bool
) -> None:
    """All outputs have the order in which the processors have sent their results."""
    pipeline = Pipeline("chain", workers=2)
    options: dict[str, Any] = {"stores": {"numbers": int}, "queryable": False, "returns": int}
    first = pipeline.stream("numbers", value=int).process(Numbered, **options).output
    first.to("first")
    second = first.filter("value >= 0").process(Numbered, **options).output
    outputs = ("second", "third", "fourth")
    for topic in outputs:
        second.map_values("value").to(topic)
    driver = drive(pipeline)
    for time, key in ((112, "a"), (123, "b")):
        driver.pipe("numbers", 1, key, timestamp=time)
        if by_one:
            driver.commit()
    of_key = {
        topic: [
            (record.value, record.timestamp) for record in driver.read(topic) if record.key == "a"
        ]
        for topic in outputs
    }
    # At 117, the second processor's timer fires before the first one's, whose result is the second
    # one's next record.
    sent = [(1, 112), (0, 117), (2, 117), (0, 122)]
    assert of_key == dict.fromkeys(outputs, sent)


class Rate(Struct):
    factor: int


class Converted:
    """Multiplies each amount by the rate of its key, and adds the total of another key as it is then."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[int]) -> None:
        rate = self.context.table("rates").get(record.key)
        others = self.context.table("totals").get("b" if record.key == "a" else "a", 0)
        factor = 1 if rate is None else rate.factor
        self.context.forward(record.key, [record.value * factor, others])


def converted(workers: int = 3) -> Pipeline:
    pipeline = Pipeline("converted", workers=workers)
    numbers = pipeline.stream("numbers", value=int)
    rates = pipeline.global_table("rates", value=Rate, store="newest_rates")
    totals = numbers.group_by_key().aggregate(
        int, lambda total, number: total + number, store="totals", returns=int
    )
    tables: dict[str, Table[Any]] = {"rates": rates, "totals": totals}
    numbers.process(Converted, tables=tables, returns=list[int]).output.to("converted")
    return pipeline


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_a_processor_reads_the_rows_of_any_key_as_of_its_record(drive: Drive, by_one: bool) -> None:
    driver = drive(converted())
    story: list[tuple[str, str, Any]] = [
        ("numbers", "a", 1), ("rates", "a", {"factor": 10}), ("numbers", "a", 2), ("numbers", "b", 5),
        ("rates", "b", {"factor": 7}), ("rates", "a", None), ("numbers", "a", 3), ("numbers", "b", 1),
    ]  # fmt: skip
    for time, (topic, key, value) in enumerate(story):
        driver.pipe(topic, value, key, timestamp=time)
        if by_one:
            driver.commit()
    assert read(driver, "converted") == [
        ("a", [1, 0]), ("a", [20, 0]), ("b", [5, 3]), ("a", [3, 5]), ("b", [7, 6]),
    ]  # fmt: skip
    assert driver.store("newest_rates") == {"b": {"factor": 7}}
    assert "reads rates, totals" in plan(driver.pipeline).pipeline.text


def test_a_processor_cannot_read_what_is_no_table_of_plain_keys(drive: Drive) -> None:
    pipeline = Pipeline("unreadable")
    numbers = pipeline.stream("numbers", value=int)
    windows = numbers.group_by_key().windowed_by(tumbling("1 minute")).count(store="counts")
    with pytest.raises(TopologyError, match="the table 'counts' is windowed"):
        numbers.process(Converted, tables={"counts": windows})
    with pytest.raises(TopologyError, match=r"expected a table as tables\['numbers'\], got Stream"):
        numbers.process(Converted, tables={"numbers": numbers})  # type: ignore[dict-item]
    with pytest.raises(TopologyError, match=r"expected the name of a table \(str\), got int: 1"):
        numbers.process(Converted, tables={1: pipeline.table("rates", value=int)})  # type: ignore[dict-item]
    numbers.process(Converted, returns=list[int])
    driver = drive(pipeline)
    driver.pipe("numbers", 1, "a")
    (letter,) = driver.dead_letters()
    assert "The processor has no table 'rates'" in letter.headers["sluice.detail"]
