"""Bad input: each record is a dead letter with its reason and place, or has its documented meaning."""

from __future__ import annotations

from collections import Counter

import pytest

from sluice import Pipeline, tumbling
from sluice.state.model import JobRef
from sluice.topics import text_headers
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, millis, sale, sales_of, shop
from tests.faults.conftest import Seen

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


def reasons_by_place(running: Running) -> dict[int, str]:
    letters = [text_headers(letter) for letter in running.dead_letters()]
    return {int(one["sluice.offset"]): one["sluice.reason"] for one in letters}


@pytest.mark.heavy
@pytest.mark.fault("B1", f"{len(BAD)} values that keep no contract, each between two good ones")
def test_values_that_keep_no_contract(start: Start, seen: Seen) -> None:
    running = start(shop)
    for value in BAD:
        running.send("sales", sale("a"), (b"key", value))
    running.run()
    found = reasons_by_place(running)
    expected = {2 * n + 1: reason for n, reason in enumerate(BAD.values())}
    assert found.keys() == expected.keys()
    assert all(reason in ("*", found[place]) for place, reason in expected.items())
    assert running.store("n") == {"a": len(BAD)}
    assert [letter.value() for letter in running.dead_letters()] == list(BAD)
    seen(f"each a dead letter with its place and bytes: {dict(Counter(found.values()))}; the good ones counted")


@pytest.mark.heavy
@pytest.mark.fault("B2", "null keys, tombstones, 0.9 MB, invalid UTF-8, a byte-order mark, deep nesting")
def test_unusual_records(start: Start, seen: Seen) -> None:
    running = start(shop)
    long = sale("long" * 110_000, note="n" * 450_000)
    running.send("sales", (None, sale("a")), (b"key", None), (b"\xff", sale("a")), long)
    running.send("sales", sale("a").replace(b"a", b"\xff", 1), b"\xef\xbb\xbf" + sale("a"), b"[" * 100_000)
    running.run()
    found = reasons_by_place(running)
    assert found.keys() == {1, 4, 5, 6}
    assert found[1] == "null_value"
    assert running.store("n") == {"a": 2, "long" * 110_000: 1}
    seen(f"null and unreadable record keys, which nothing reads, and 0.9 MB counted; set aside: {found}")


@pytest.mark.heavy
@pytest.mark.fault("B3", "event times in 2099, in year 1, with a zone and without, among those of one morning")
def test_event_times(start: Start, seen: Seen) -> None:
    running = start(shop)
    running.send("sales", sale("a"), sale("a", at="2099-01-01T00:00:00"), sale("a", at="0001-01-01T00:00:00"))
    running.send("sales", sale("a", at="2022-12-05T09:00:30+01:00"), sale("a", at="2022-12-05T08:00:40Z"))
    running.run()
    assert reasons_by_place(running) == {1: "future", 2: "event_time"}
    assert running.store("n_window") == {("a", millis("08:00:00")): 3}
    assert [*running.snapshot().stream_times.values()] == [millis("08:00:40")]
    seen("future and year 1 set aside, stream time 08:00:40, zones understood")


@pytest.mark.heavy
@pytest.mark.fault("B4", "the same sale three times, in one batch and in two, with and without a declared id")
def test_the_same_record_twice(start: Start, seen: Seen) -> None:
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
    dropped = {name: running.counts(name) for name in running.snapshot().counts if "duplicate" in name}
    assert sum(dropped.values()) == 2
    seen(f"without an id each is counted, 3; with one the first, and {dropped} are told")


@pytest.mark.heavy
@pytest.mark.fault("B5", "an unknown kind, a negative amount")
def test_declared_rules(start: Start, seen: Seen) -> None:
    def only_positive(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales_of(pipeline, names).filter("amount >= 0").group_by("shop").count(store="n")
        return pipeline

    running = start(only_positive)
    running.send("sales", sale("a"), sale("a", -1), sale("a", kind="unheard of"))
    running.run()
    with running.ledger() as ledger:
        ((source,),) = [audit.sources for audit in ledger.audits.all(JobRef(running.pipeline.name, "main", 1))]
    assert (source.read, source.applied, source.filtered) == (3, 2, 1)
    assert running.store("n") == {"a": 2}
    seen("the filter's rule: 1 filtered, told by the audit; a field that the contract does not know is left unread")


@pytest.mark.heavy
@pytest.mark.fault("B6", "events 1 ms before and at the end of grace and the edges of windows, each in its own batch")
def test_edges(start: Start, seen: Seen) -> None:
    def windows(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        groups = sales_of(pipeline, names).group_by("shop")
        groups.windowed_by(tumbling("60 seconds", grace="15 seconds")).count(store="n_window")
        return pipeline

    running = start(windows)
    for at in ("08:00:00.000", "08:00:59.999", "08:01:00.000", "08:01:14.999", "08:00:30", "08:01:15.000", "08:00:30"):
        running.send("sales", sale("a", at=at))
        running.run()
    assert running.store("n_window") == {("a", millis("08:00:00")): 3, ("a", millis("08:01:00")): 3}
    assert [snapshot.counts.get("late/n_window", 0) for snapshot in running.snapshots()] == [0, 0, 0, 0, 0, 0, 1]
    seen("at 1 ms before the end of grace it counts, at the end it is late; a window takes its start and not its end")
