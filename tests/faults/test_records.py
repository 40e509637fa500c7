"""Unusual input: each record becomes a dead letter with reason and position, or has its documented meaning."""

from __future__ import annotations

from collections import Counter

import pytest

from sluice import Pipeline, tumbling
from sluice.kafka.topics import text_headers
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, millis, sale, sales_of, shop
from tests.faults.conftest import Observe

GOOD = '"shop":"a","amount":1,"at":"2022-12-05T08:00:00"'
BAD: dict[bytes | None, str] = {
    b"{": "malformed",
    b"": "empty_value",
    None: "null_value",
    b"[]": "contract",
    b"null": "contract",
    b'{"shop":1,"amount":1,"at":"2022-12-05T08:00:00"}': "contract",
    b'{"shop":"a","amount":1e400,"at":"2022-12-05T08:00:00"}': "*",
    b'{"shop":"a","amount":NaN,"at":"2022-12-05T08:00:00"}': "malformed",
    b'{"shop":"a","amount":1.005,"at":"2022-12-05T08:00:00"}': "digits",
    b'{"shop":"a","amount":1,"amount":2,"at":"2022-12-05T08:00:00"}': "duplicate_field",
    b'{"Shop":"a","amount":1,"at":"2022-12-05T08:00:00"}': "contract",
    f"{{{GOOD}}}{{{GOOD}}}".encode(): "malformed",
    b'{"shop":"a","amount":1,"at":"2022-02-30T08:00:00"}': "contract",
    b'{"shop":"a","amount":1,"at":1670227200000}': "contract",
    b'{"shop":"a\x00","amount":1,"at":"2022-12-05T08:00:00"}': "malformed",
}


def reasons_by_offset(running: Running) -> dict[int, str]:
    all_headers = [text_headers(dead_letter) for dead_letter in running.dead_letters()]
    return {int(headers["sluice.offset"]): headers["sluice.reason"] for headers in all_headers}


@pytest.mark.heavy
@pytest.mark.fault(
    "B1", f"{len(BAD)} values that violate their contract, each between two valid ones"
)
def test_values_that_violate_their_contract(start: Start, observe: Observe) -> None:
    running = start(shop)
    for value in BAD:
        running.send("sales", sale("a"), (b"key", value))
    running.run()
    reasons = reasons_by_offset(running)
    expected = {2 * n + 1: reason for n, reason in enumerate(BAD.values())}
    assert reasons.keys() == expected.keys()
    assert all(reason in ("*", reasons[offset]) for offset, reason in expected.items())
    assert running.store("n") == {"a": len(BAD)}
    assert [dead_letter.value() for dead_letter in running.dead_letters()] == list(BAD)
    observe(
        f"each is a dead letter with position and bytes: {dict(Counter(reasons.values()))}; the others are counted"
    )


@pytest.mark.heavy
@pytest.mark.fault(
    "B2", "null keys, tombstones, 0.9 MB, invalid UTF-8, a byte-order mark, deep nesting"
)
def test_unusual_records(start: Start, observe: Observe) -> None:
    running = start(shop)
    long = sale("b", note="n" * 890_000)
    running.send("sales", (None, sale("a")), (b"key", None), (b"\xff", sale("a")), long)
    running.send(
        "sales", sale("a").replace(b"a", b"\xff", 1), b"\xef\xbb\xbf" + sale("a"), b"[" * 100_000
    )
    running.run()
    reasons = reasons_by_offset(running)
    assert reasons.keys() == {1, 4, 5, 6}
    assert reasons[1] == "null_value"
    assert running.store("n") == {"a": 2, "b": 1}
    observe(
        f"records with null or unreadable keys, which no step reads, and with 0.9 MB are counted; rejected: {reasons}"
    )


@pytest.mark.heavy
@pytest.mark.fault(
    "B3", "event times in 2099 and in year 1, with and without a zone, among those of one morning"
)
def test_event_times(start: Start, observe: Observe) -> None:
    running = start(shop)
    running.send(
        "sales", sale("a"), sale("a", at="2099-01-01T00:00:00"), sale("a", at="0001-01-01T00:00:00")
    )
    running.send(
        "sales", sale("a", at="2022-12-05T09:00:30+01:00"), sale("a", at="2022-12-05T08:00:40Z")
    )
    running.run()
    assert reasons_by_offset(running) == {1: "future", 2: "event_time"}
    assert running.store("n_window") == {("a", millis("08:00:00")): 3}
    assert [*running.snapshot().stream_times.values()] == [millis("08:00:40")]
    observe("2099 and year 1 are rejected, stream time is 08:00:40, zones are respected")


@pytest.mark.heavy
@pytest.mark.fault(
    "B4", "the same sale three times, in two batches, with and without `deduplicate`"
)
def test_the_same_record_twice(start: Start, observe: Observe) -> None:
    def each_once(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales = sales_of(pipeline, names).deduplicate("concat(shop, at)", within="1 hour")
        sales.group_by("shop").count(store="n")
        return pipeline

    counted = []
    for build in (shop, each_once):
        running = start(build)
        running.send("sales", sale("a"), sale("a"))
        running.run()
        running.send("sales", sale("a"), sale("b"))
        running.run()
        counted.append(running.store("n"))
    assert counted == [{"a": 3, "b": 1}, {"a": 1, "b": 1}]
    dropped = {
        name: running.counts(name) for name in running.snapshot().counts if "duplicate" in name
    }
    assert sum(dropped.values()) == 2
    observe(
        f"without `deduplicate` each is counted; with it the first is, and the snapshot counts {dropped}"
    )


@pytest.mark.heavy
@pytest.mark.fault("B5", "an unknown field, and a negative amount that a filter removes")
def test_declared_rules(start: Start, observe: Observe) -> None:
    def only_positive(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales_of(pipeline, names).filter("amount >= 0").group_by("shop").count(store="n")
        return pipeline

    running = start(only_positive)
    running.send("sales", sale("a"), sale("a", -1), sale("a", kind="unheard of"))
    running.run()
    with running.ledger() as ledger:
        ((source,),) = [
            audit.sources for audit in ledger.audits.all(GenerationRef(running.pipeline.name, 1))
        ]
    assert (source.read, source.applied, source.filtered) == (3, 2, 1)
    assert running.store("n") == {"a": 2}
    observe(
        "the audit counts 1 filtered record; a field that the contract does not name is ignored"
    )


@pytest.mark.heavy
@pytest.mark.fault(
    "B6",
    "event times at the boundaries of windows and of grace and 1 ms before, each in its own batch",
)
def test_boundaries_of_windows_and_grace(start: Start, observe: Observe) -> None:
    def windows(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        groups = sales_of(pipeline, names).group_by("shop")
        groups.windowed_by(tumbling("60 seconds", grace="15 seconds")).count(store="n_window")
        return pipeline

    running = start(windows)
    for at in (
        "08:00:00.000",
        "08:00:59.999",
        "08:01:00.000",
        "08:01:14.999",
        "08:00:30",
        "08:01:15.000",
        "08:00:30",
    ):
        running.send("sales", sale("a", at=at))
        running.run()
    assert running.store("n_window") == {("a", millis("08:00:00")): 3, ("a", millis("08:01:00")): 3}
    assert [snapshot.counts.get("late/n_window", 0) for snapshot in running.snapshots()] == [
        0,
        0,
        0,
        0,
        0,
        0,
        1,
    ]
    observe(
        "a record counts up to 1 ms before the end of grace; a window includes its start and excludes its end"
    )
