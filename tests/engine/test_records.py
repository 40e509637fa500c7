"""Single records: dead letters, times and zones, filters, null keys, unusual contracts, tables."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from sluice import Pipeline, hopping, tumbling
from sluice.engine.publish import lookup_tables
from sluice.errors import EngineError
from tests.engine.conftest import Start
from tests.engine.shop import (
    GRACE,
    Bill,
    Names,
    Sale,
    Shop,
    address,
    by_shop,
    millis,
    sale,
    sales_of,
    shop,
)


def test_bad_records_become_dead_letters_with_their_original_bytes(start: Start) -> None:
    running = start(shop)
    bad = b'\x00{"shop": \xff'
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("none", None)]
    running.send("sales", sale("a"))
    running.send("sales", (b"\xfe", bad), headers=headers)
    running.send("sales", (None, None), sale("a", "1.005"), sale("b"))
    running.send("shops", (None, b"[]"))
    assert running.run() == 6
    assert running.store("n") == {"a": 1, "b": 1}

    (first,) = [letter for letter in running.dead_letters() if letter.value() == bad]
    assert first.key() == b"\xfe"
    dead_letters = list(cast(list[tuple[str, bytes | None]], first.headers()))
    assert dead_letters[:3] == headers
    assert dict(dead_letters[3:]) == {
        "sluice.reason": b"malformed",
        "sluice.detail": b"JSON is malformed: invalid character (byte 0)",
        "sluice.topic": running.names("sales").encode(),
        "sluice.partition": b"0",
        "sluice.offset": b"1",
        "sluice.timestamp": dict(dead_letters)["sluice.timestamp"],
    }
    assert first.timestamp()[0] == TIMESTAMP_CREATE_TIME
    assert sorted(running.reasons()) == ["contract", "digits", "malformed", "null_value"]
    counts = running.snapshot().counts
    assert counts["read"] == counts["applied"] + sum(
        n for name, n in counts.items() if name.startswith("dead_letter/")
    )
    assert counts[f"output/{running.pipeline.dead_letters}"] == 4


def test_a_record_from_the_future_is_rejected_and_does_not_advance_stream_time(
    start: Start,
) -> None:
    running = start(shop)
    running.send(
        "sales",
        sale("a", at="08:00:00"),
        sale("a", at="2099-01-01T00:00:00"),
        sale("a", at="08:00:01"),
    )
    running.run()
    running.send("sales", sale("a", at="08:00:02"))
    running.run()
    assert running.store("n_window") == {("a", millis("08:00:00")): 3}
    assert running.snapshot().stream_times == {
        f"n_window/{running.names('sales')}/0": millis("08:00:02")
    }
    assert running.reasons() == ["future"]


def in_berlin(names: Names) -> Pipeline:
    pipeline = names.pipeline(zone="Europe/Berlin")
    by_shop(pipeline, names).windowed_by(tumbling("1 hour")).count(store="n")
    return pipeline


def test_times_without_a_zone_are_in_the_pipelines_zone(start: Start) -> None:
    running = start(in_berlin)
    running.send(
        "sales", sale("a", at="2022-12-05T08:30:00"), sale("a", at="2022-12-05T08:30:00+00:00")
    )
    running.run()
    assert running.store("n") == {("a", millis("07:00:00")): 1, ("a", millis("08:00:00")): 1}


def careful(names: Names) -> Pipeline:
    """Divides by a field that a filter checks for zero, next to a store that accepts zeros."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    sales.group_by("shop").aggregate(store="all", items="sum(quantity)")
    some = sales.filter("quantity <> 0")
    some.select(price="amount / quantity").filter("price > 1").to(names("prices"))
    groups = some.group_by("shop || (10 div quantity)")
    groups.aggregate(store="each", dearest="max(amount / quantity)")
    groups.windowed_by(GRACE).aggregate(store="each_window", dearest="max(amount / quantity)")
    sales.filter_not("quantity <> 0").group_by("shop").count(store="none")
    return pipeline


def test_filtered_records_are_not_evaluated(start: Start) -> None:
    running = start(careful)
    running.send(
        "sales", sale("a", 9, quantity=3), sale("a", 9, quantity=0), sale("b", 1, quantity=2)
    )
    running.run()
    assert running.store("all") == {"a": {"items": 3}, "b": {"items": 2}}
    assert [value["price"] for _, value in running.output("prices")] == [3.0]
    assert {key: value["dearest"] for key, value in running.store("each").items()} == {
        "a3": 3.0,
        "b5": 0.5,
    }
    assert len(running.store("each_window")) == 2
    assert running.store("none") == {"a": 1}


def two_topics(names: Names) -> Pipeline:
    """Two streams with different contracts and numbers of partitions; one has its key and time from Kafka."""
    pipeline = names.pipeline(workers=3)
    by_shop(pipeline, names).windowed_by(GRACE).count(store="sold")
    moves = pipeline.stream(names("moves"), value=Shop)
    moves.group_by("_key").windowed_by(GRACE).aggregate(
        store="moved", to="max(city)", last="max(_offset)"
    )
    return pipeline


def test_topics_with_different_contracts_share_a_job(start: Start) -> None:
    running = start(two_topics, sales=2)
    running.send("sales", sale("a", at="08:00:00"))
    running.send("moves", ("k", address("a", "Aachen")), (None, address("b", "Bonn")), (b"\xff", address("c", "Celle")),
                 ("k", address("a", "Essen")), timestamp=millis("09:00:00"))  # fmt: skip
    running.send("moves", ("k", sale("a")), timestamp=millis("09:00:00"))
    assert running.run() == 6
    assert running.store("sold") == {("a", millis("08:00:00")): 1}
    assert running.store("moved") == {("k", millis("09:00:00")): {"to": "Essen", "last": 3}}
    snapshot = running.snapshot()
    assert snapshot.counts["null_key/moved"] == 1
    assert snapshot.counts["dead_letter/key_not_utf8"] == 1
    assert snapshot.counts["dead_letter/contract"] == 1
    # A store only has stream times of its own topic.
    assert snapshot.stream_times == {
        f"sold/{running.names('sales')}/0": millis("08:00:00"),
        f"moved/{running.names('moves')}/0": millis("09:00:00"),
    }
    running.send("sales", sale("a", at="08:00:01"), partition=1)
    running.run()
    assert running.store("sold") == {("a", millis("08:00:00")): 2}


def odd_names(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    bills = pipeline.stream(names("bills"), value=Bill)
    groups = bills.filter("`bill-no` > 1 AND tags['x'] = 1").group_by("`from`")
    groups.aggregate(
        store="sums",
        items="sum(size(lines))",
        best="max(best.price)",
        dearest="max(lines[0].`item-no`)",
    )
    mapped = bills.select("bill-no", "from", "lines", "tags", "kind", "note", twice="`bill-no` * 2")
    mapped.to(names("copies"))
    return pipeline


def test_fields_may_have_any_name_and_shape(start: Start) -> None:
    running = start(odd_names)
    bill = (
        '{"bill-no": %d, "from": "it\'s \\"Ü\\"", "lines": [{"item-no": 7, "price": 1.5}], "tags": {"x": 1},'
        ' "kind": "a", "best": {"item-no": 1, "price": 2}}'
    )
    running.send("bills", (bill % 1).encode(), (bill % 2).encode(), (bill % 3).encode())
    running.run()
    assert running.store("sums") == {'it\'s "Ü"': {"items": 2, "best": 2.0, "dearest": 7}}
    assert [value for _, value in running.output("copies")][2] == {
        "bill-no": 3,
        "from": 'it\'s "Ü"',
        "lines": [{"item-no": 7, "price": 1.5}],
        "tags": {"x": 1},
        "kind": "a",
        "note": None,
        "twice": 6,
    }


def test_a_global_table_is_joined_as_of_the_batch(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_tables, "_PAGE", 3)  # the table has more rows than a page
    running = start(shop)
    shops = {key: f"city of {key}" for key in "abcdefgh"}
    running.send(
        "shops",
        *(address(key, city) for key, city in shops.items()),
        address("a", "old"),
        address("a", "new"),
    )
    running.send("sales", sale("a"), sale("z"))
    running.run()
    assert running.store("shops")["a"]["city"] == "new"  # the last record of the batch counts
    assert running.output("with_city") == [("a", {"shop": "a", "amount": 1.0, "city": "new"})]
    assert dict(running.output("with_any_city"))["z"] == {"amount": 1.0, "city": None}

    running.send("shops", address("z", "Zürich \"Ü\" 'x' \\"), ("b", None), (b"never", None))
    running.send("sales", sale("z"), sale("b"), sale("h"))
    running.run()
    assert dict(running.output("with_city")[1:]) == {
        "z": {"shop": "z", "amount": 2.0, "city": "Zürich \"Ü\" 'x' \\"},
        "h": {"shop": "h", "amount": 1.0, "city": "city of h"},
    }
    assert dict(running.output("with_any_city"))["b"] == {"amount": 1.0, "city": None}
    assert "b" not in running.store("shops")
    assert len(running.store("shops")) == 8

    # A change of the table alone is published, but produces no output of the join.
    running.send("shops", address("a", "newest"))
    running.run()
    assert running.store("shops")["a"]["city"] == "newest"
    assert len(running.output("with_city")) == 3


def test_a_missing_topic_is_named(start: Start) -> None:
    running = start(shop)
    missing = Pipeline(running.names.prefix)
    missing.stream("no-such-topic", value=Sale).group_by("shop").count(store="n")
    running.pipeline = missing
    with pytest.raises(EngineError, match=r"Topic no-such-topic does not exist\. Create the topic"):
        running.run()


def test_changes_of_a_windowed_store_have_window_headers(start: Start) -> None:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        windows = sales_of(pipeline, names).group_by("shop").windowed_by(GRACE)
        windows.count(store="n").to(names("counts"))
        table = windows.aggregate(store="total", amount="sum(amount)")
        table.select("amount", minute="date_format(_window_start, 'HH:mm')").to(names("minutes"))
        return pipeline

    running = start(build, sales=1)
    running.send("sales", sale("a", "1.10"), sale("a", "2.20"), sale("a", "5.00", at="08:01:00"))
    running.run()

    first, second = millis("08:00:00"), millis("08:01:00")
    counts = [
        (message.value(), dict(message.headers() or []))
        for message in running.messages(running.names("counts"))
    ]
    assert sorted(counts, key=str) == [
        (b"1", {"window_start": str(second).encode(), "window_end": str(second + 60_000).encode()}),
        (b"2", {"window_start": str(first).encode(), "window_end": str(second).encode()}),
    ]
    assert sorted(running.output("minutes"), key=str) == [
        ("a", {"amount": 3.3, "minute": "08:00"}),
        ("a", {"amount": 5.0, "minute": "08:01"}),
    ]


def test_branches_keys_and_hopping_windows(start: Start) -> None:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        branches = sales_of(pipeline, names).split(
            large="amount >= 10", small="amount >= 5", rest="true"
        )
        for name, branch in branches.items():
            by_minute = branch.select_key("date_format(at, 'HH:mm')")
            by_minute.group_by_key().count(store=name)
            by_minute.select("shop").to(names(name))
        hops = hopping("2 minutes", advance="1 minute")
        branches["large"].group_by("shop").windowed_by(hops).aggregate(
            store="hops", total="sum(amount)"
        )
        return pipeline

    running = start(build, sales=1)
    running.send(
        "sales",
        sale("a", "10.00"),
        sale("b", "7.00"),
        sale("c", "1.00"),
        sale("a", "20.00", at="08:01:00"),
    )
    running.run()
    running.send("sales", sale("a", "40.00", at="08:02:00"), sale("b", "6.00", at="08:01:59"))
    running.run()

    assert running.store("large") == {"08:00": 1, "08:01": 1, "08:02": 1}
    assert running.store("small") == {"08:00": 1, "08:01": 1}
    assert running.store("rest") == {"08:00": 1}
    assert running.output("small") == [("08:00", {"shop": "b"}), ("08:01", {"shop": "b"})]
    at = {minute: millis(f"{minute}:00") for minute in ("07:59", "08:00", "08:01", "08:02")}
    assert {key: value["total"] for key, value in running.store("hops").items()} == {
        ("a", at["07:59"]): 10.0,
        ("a", at["08:00"]): 30.0,
        ("a", at["08:01"]): 60.0,
        ("a", at["08:02"]): 40.0,
    }


def traced(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    sales.to(names("copies"))
    sales.to(names("fast_copies"), delivery="at_least_once")
    sales.group_by_key().reduce(lambda one, other: other, store="last").to(names("changes"))
    return pipeline


def test_output_records_have_the_headers_of_their_records(start: Start) -> None:
    running = start(traced)
    headers: list[tuple[str, bytes | None]] = [
        ("trace", b"\x00\xff"),
        ("trace", b"again"),
        ("none", None),
    ]
    running.send("sales", (b"k", sale("a")), headers=[*headers, ("sluice.redriven", b"1")])
    running.send("sales", (b"k", sale("b")))
    running.run()
    for topic in ("copies", "fast_copies", "changes"):
        messages = running.messages(running.names(topic))
        assert [[*(message.headers() or [])] for message in messages] == [headers, []], topic
