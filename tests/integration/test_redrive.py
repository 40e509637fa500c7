"""Dead letters are re-driven once, after a fix, on a real broker."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from sluice.errors import EngineError, OutputError
from sluice.kafka import dead_letter_topic
from sluice.kafka.brokers import ANY_SIZE
from sluice.kafka.dead_letter_topic import DeadLetterFilter, find_dead_letters
from sluice.kafka.redrive import redrive
from sluice.kafka.redrive_topic import accept_redrive_topic
from sluice.kafka.topics import Headers, headers_of, read_topic
from sluice.local.broker import EmbeddedKafka
from sluice.values.dead_letter_headers import escaped
from tests.faults.world import wait_until

pytestmark = pytest.mark.integration

TRACE: Headers = [("trace", b"\x01")]
LONG_AGO = "2026-01-02T03:04:05+00:00"


class Shop:
    """A pipeline's topics on a broker: `shop` is its source, with two partitions."""

    def __init__(self, kafka: EmbeddedKafka, name: str) -> None:
        self.name = name
        self.kafka = {"bootstrap.servers": kafka.bootstrap}
        kafka.create_topics({name: 2, dead_letter_topic.topic_of(name): 1})
        self._producer = Producer(self.kafka | ANY_SIZE)
        self._written = 0

    def reject(
        self,
        value: bytes | None,
        reason: str = "contract",
        partition: Any = 1,
        own: Headers = TRACE,
        **headers: Any,
    ) -> None:
        """Write the dead letter of a record with its `own` headers, as a run does."""
        place = {"topic": self.name, "partition": partition, "offset": 0, "timestamp": LONG_AGO}
        texts = {"reason": reason, "detail": "Expected `int`", **place, **headers}
        sent: list[tuple[str, str | bytes | None]] = [
            (escaped(name), content) for name, content in own
        ]
        sent += [
            (f"sluice.{name}", str(text).encode()) for name, text in texts.items() if text != ""
        ]
        self._producer.produce(dead_letter_topic.topic_of(self.name), value, b"k\xff", headers=sent)
        assert self._producer.flush(30) == 0

    def send(self, value: bytes, partition: int) -> None:
        self._written += 1
        self._producer.produce(self.name, value, b"own", partition)
        assert self._producer.flush(30) == 0

    def redrive(self, **chosen: Any) -> tuple[int, dict[str, int]]:
        done = redrive(self.kafka, self.name, [self.name], DeadLetterFilter(**chosen))
        self._written += done.redriven
        return done.redriven, dict(done.skipped)

    @property
    def records(self) -> list[Message]:
        """All records of the source.

        After a transaction's commit, its records can be read a moment later.
        """
        assert wait_until(lambda: len(self._read()) >= self._written)
        return self._read()

    def _read(self) -> list[Message]:
        return list(read_topic(self.kafka, self.name))


@pytest.fixture
def shop(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> Shop:
    return Shop(kafka, "shop" + str(abs(hash(request.node.name)) % 10**8))


def test_a_record_is_written_as_it_was_with_the_history_of_its_failure(shop: Shop) -> None:
    shop.reject(b"\xffraw")
    assert shop.redrive() == (1, {})
    (record,) = shop.records
    assert (record.partition(), record.key(), record.value()) == (1, b"k\xff", b"\xffraw")
    assert record.timestamp()[1] == datetime.fromisoformat(LONG_AGO).timestamp() * 1_000
    headers = dict(record.headers() or [])
    assert {*headers} == {"trace", "sluice.history.1", "sluice.redriven"}
    failure = json.loads(headers["sluice.history.1"] or b"")
    assert (failure["reason"], failure["detail"], failure["dead_letter"]) == (
        "contract",
        "Expected `int`",
        "0/0",
    )


def test_a_dead_letter_is_re_driven_once(shop: Shop) -> None:
    shop.reject(b"1")
    assert shop.redrive() == (1, {})
    assert shop.redrive() == (0, {"re-driven already": 1})
    assert len(shop.records) == 1
    found = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(), 10)
    assert found.markers[0, 0].topic == shop.name


def test_a_corrected_value_takes_the_place_of_the_records_value(shop: Shop) -> None:
    shop.reject(b'{"n": "x"}')
    shop.reject(b"other")
    chosen = DeadLetterFilter(place=(0, 0))
    done = redrive(shop.kafka, shop.name, [shop.name], chosen, value=b'{"n": 1}')
    assert done.redriven == 1
    shop._written += 1
    (record,) = shop.records
    assert (record.key(), record.value(), record.partition()) == (b"k\xff", b'{"n": 1}', 1)
    assert dict(record.headers() or [])["trace"] == b"\x01"


def test_dead_letters_are_grouped_and_know_what_came_of_their_re_drive(shop: Shop) -> None:
    for _ in range(3):
        shop.reject(b"1")
    shop.reject(b"2", "processing", step="map-3")
    shop.reject(b"3", "processing", step="map-9")
    assert shop.redrive(place=(0, 0)) == (1, {})
    found = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(), 1)
    assert {name: group.count for name, group in found.groups.items()} == {
        ("contract", ""): 3,
        ("processing", "map-3"): 1,
        ("processing", "map-9"): 1,
    }
    group = found.groups["contract", ""]
    assert (len(group.redriven_to), group.redriven_to & found.failed_again) == (1, set())
    # The re-driven record fails again, for another reason.
    marker = found.markers[0, 0]
    shop.reject(b"1", "digits", marker.partition, offset=marker.offset)
    found = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(reason="contract"), 10)
    group = found.groups["contract", ""]
    assert group.redriven_to == found.failed_again
    failed = [found.has_failed_again(letter) for letter in found.letters]
    assert sorted(failed) == [False, False, True]
    again = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(reason="digits"), 10)
    assert len(again.groups["digits", ""].example.history) == 1
    of_step = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(step="map-9"), 10)
    assert [letter.value for letter in of_step.letters] == [b"3"]
    assert [*find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(step=""), 10).reasons] == [
        "contract",
        "digits",
    ]


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_re_driven_twice_when_the_markers_are_lost(
    shop: Shop,
    kafka: EmbeddedKafka,
    again: bool,
) -> None:
    shop.reject(b"1")
    assert shop.redrive() == (1, {})
    topic = dead_letter_topic.markers_of(shop.name)
    delete_topic(shop, topic)
    if again:
        kafka.create_topics({topic: 1})
    shop.reject(b"2")
    happened = "was deleted and created again" if again else "was deleted"
    text = rf"Topic {topic} {happened}\..*sluice topics accept {shop.name}"
    for _ in range(2):
        with pytest.raises(OutputError, match=text):
            shop.redrive()
    assert len(shop.records) == 1
    assert accept_redrive_topic(shop.kafka, shop.name) == topic
    assert accept_redrive_topic(shop.kafka, shop.name) is None
    assert shop.redrive(place=(0, 1)) == (1, {})
    assert [record.value() for record in shop.records] == [b"1", b"2"]
    assert shop.redrive(place=(0, 1)) == (0, {"re-driven already": 1})


def test_an_earlier_topic_of_markers_is_taken_over(shop: Shop, kafka: EmbeddedKafka) -> None:
    topic = dead_letter_topic.markers_of(shop.name)
    kafka.create_topics({topic: 1})
    shop.reject(b"1")
    assert shop.redrive() == (1, {})
    delete_topic(shop, topic)
    with pytest.raises(OutputError):
        shop.redrive()


def delete_topic(shop: Shop, topic: str) -> None:
    admin = AdminClient({**shop.kafka})
    admin.delete_topics([topic])[topic].result(20)
    assert wait_until(lambda: topic not in admin.list_topics(timeout=20).topics)


def test_a_topic_that_is_created_again_has_no_letters_that_were_re_driven(
    shop: Shop, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = dead_letter_topic.topic_of(shop.name)

    def create_again() -> None:
        admin = AdminClient({**shop.kafka})
        admin.delete_topics([topic])[topic].result(20)
        assert wait_until(lambda: topic not in admin.list_topics(timeout=20).topics)
        kafka.create_topics({topic: 1})

    shop.reject(b"1")
    assert shop.redrive() == (1, {})
    create_again()
    shop.reject(b"2")
    assert find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(), 10).markers == {}
    assert shop.redrive() == (1, {})
    assert shop.redrive() == (0, {"re-driven already": 1})
    assert [record.value() for record in shop.records] == [b"1", b"2"]

    def read_and_create_again(*arguments: Any, **more: Any) -> Iterator[Message]:
        yield from read_topic(*arguments, **more)
        if arguments[1] == topic:
            create_again()

    shop.reject(b"3")
    monkeypatch.setattr(dead_letter_topic, "read_topic", read_and_create_again)
    with pytest.raises(EngineError, match="was deleted while it was read"):
        shop.redrive()
    assert len(shop.records) == 2


def test_a_second_failure_is_a_new_dead_letter_with_its_history(shop: Shop) -> None:
    shop.reject(b"1")
    shop.redrive()
    (record,) = shop.records
    shop.reject(b"1", reason="digits", own=headers_of(record), offset=record.offset())
    newest = find_dead_letters(
        shop.kafka, shop.name, DeadLetterFilter(reason="digits"), 10
    ).letters[0]
    assert [failure["reason"] for failure in newest.history] == ["contract"]
    assert shop.redrive() == (1, {"re-driven already": 1})
    headers = headers_of(shop.records[-1])
    assert [name for name, _ in headers] == [
        "trace",
        "sluice.history.1",
        "sluice.history.2",
        "sluice.redriven",
    ]
    assert headers[-1] == ("sluice.redriven", b"2")
    assert json.loads(dict(headers)["sluice.history.2"] or b"")["reason"] == "digits"


@pytest.mark.fault("F46", "records with headers that look like Sluice's")
@pytest.mark.parametrize(
    "own",
    [
        [
            ("sluice.history.1", b"[" * 100_000),
            ("sluice.history.1", b'"\xff"'),
            ("sluice.history." + "9" * 5_000, b"{}"),
        ],
        [
            ("sluice.history.1", None),
            ("sluice.redriven", b"\xff" * 10),
            ("sluice.history.\u0663", b"1"),
            ("", b""),
        ],
        [
            ("sluice.reason", b"digits"),
            ("sluice.step", b"forged"),
            ("sluice.key", b"forged"),
            ("sluice.left_out", b"all"),
        ],
        [
            ("sluice.topic", b"elsewhere"),
            ("sluice.partition", b"9" * 5_000),
            ("sluice.original.sluice.reason", b"x"),
        ],
        [("sluice.history.1", b'{"reason": "forged"}'), ("sluice.redriven", b"1")],
        [("a", b"1"), ("b", None), ("a", b""), ("a", b"\xff")],
    ],
    ids=["not JSON", "not texts", "reasons", "places", "forged history", "duplicates"],
)
def test_a_producers_headers_are_data_whatever_their_names(shop: Shop, own: Headers) -> None:
    shop.reject(b"before", own=[])
    shop.reject(b"1", own=own, offset=7)
    letter = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(), 10, 10**9).letters[0]
    assert (letter.reason, letter.source, letter.history) == ("contract", (shop.name, 1, 7), ())
    assert (letter.headers, letter.header("step"), letter.header("key")) == (own, "", "")
    assert shop.redrive() == (2, {})
    record = shop.records[-1]
    assert [name for name, _ in headers_of(record)[len(own) :]] == [
        "sluice.history.1",
        "sluice.redriven",
    ]
    assert headers_of(record)[: len(own)] == own
    # The history of its second failure is the one that Sluice knows.
    shop.reject(b"1", reason="digits", own=headers_of(record), offset=record.offset())
    newest = find_dead_letters(
        shop.kafka, shop.name, DeadLetterFilter(reason="digits"), 10
    ).letters[0]
    assert [(failure["reason"], failure["offset"]) for failure in newest.history] == [
        ("contract", "7")
    ]
    shop.redrive(reason="digits")
    names = [name for name, _ in headers_of(shop.records[-1])[len(own) :]]
    assert names == ["sluice.history.1", "sluice.history.2", "sluice.redriven"]


def test_a_record_that_its_topic_refuses_does_not_keep_back_the_others(shop: Shop) -> None:
    limit = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, shop.name, incremental_configs=[limit])
    admin = AdminClient({**shop.kafka})
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(20)
    shop.reject(
        b"x", own=[("large", b"y" * 99_800)]
    )  # fits until it gets the headers of its history
    shop.reject(b"x", timestamp="9223372036854775 ms")
    for number in range(3):
        shop.reject(b"%d" % number)
    began = time.monotonic()
    done, skipped = shop.redrive()
    assert time.monotonic() - began < 10
    assert (done, [*skipped.values()]) == (3, [1, 1])
    assert all("its topic does not accept it" in why for why in skipped)
    shown = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(), 10)
    assert (
        sum(len(content or b"") for letter in shown.letters for _, content in letter.headers)
        < 20_000
    )


def test_a_record_in_the_topic_that_is_no_dead_letter_is_listed(shop: Shop) -> None:
    shop._producer.produce(
        dead_letter_topic.topic_of(shop.name), b"1", headers=[("sluice.topic", shop.name.encode())]
    )
    assert shop._producer.flush(30) == 0
    found = find_dead_letters(shop.kafka, shop.name, DeadLetterFilter(), 10)
    assert [(letter.reason, letter.source) for letter in found.letters] == [("unknown", None)]
    assert shop.redrive() == (0, {"not a record of a source topic": 1})


@pytest.mark.parametrize(
    ("chosen", "values"),
    [
        ({"reason": "digits"}, {b"b"}),
        ({"partition": 0}, {b"c"}),
        ({"place": (0, 2)}, {b"c"}),
        ({"since": datetime.now(UTC) + timedelta(hours=1)}, set()),
        ({"since": datetime.now(UTC) - timedelta(hours=1)}, {b"a", b"b", b"c"}),
    ],
)
def test_dead_letters_are_chosen_by_reason_partition_place_and_time(
    shop: Shop, chosen: dict[str, Any], values: set[bytes]
) -> None:
    shop.reject(b"a")
    shop.reject(b"b", reason="digits")
    shop.reject(b"c", partition=0)
    shop.redrive(**chosen)
    assert {record.value() for record in shop.records} == values


def test_records_of_failed_steps_are_re_driven_only_by_name_and_from_their_topic(
    shop: Shop,
) -> None:
    shop.send(b'{"whole": 1}', 1)
    shop.reject(b"what the step got", reason="processing", step="store totals", at="shop.py:3")
    assert shop.redrive() == (0, {"processing: re-driven only if the command names this reason": 1})
    assert shop.redrive(reason="processing") == (1, {})
    assert [(record.key(), record.value()) for record in shop.records] == [
        (b"own", b'{"whole": 1}')
    ] * 2


def test_a_record_as_large_as_the_topic_takes_is_re_driven_with_the_others(shop: Shop) -> None:
    shop.reject(b"x" * 1_040_000)
    shop.reject(b"small")
    assert shop.redrive() == (2, {})
    assert sorted(len(record.value() or b"") for record in shop.records) == [5, 1_040_000]


def test_a_record_of_another_program_among_the_markers_is_named(shop: Shop) -> None:
    shop.reject(b"1")
    assert shop.redrive() == (1, {})
    shop._producer.produce(dead_letter_topic.markers_of(shop.name), b"of another program", b"key")
    assert shop._producer.flush(30) == 0
    with pytest.raises(
        EngineError, match=r"_redriven, partition 0, offset \d+: this record is not a marker"
    ):
        shop.redrive()


def test_what_is_no_record_of_a_source_is_left(shop: Shop) -> None:
    shop.reject(b"1", topic="elsewhere")
    shop.reject(b"2", reason="too_large", topic="", partition="", offset="", output="totals")
    shop.reject(b"3", partition=2**31)
    shop.send(b"kept", 1)
    shop.reject(b"4", partition=7)  # of the topic before it was created again with fewer partitions
    for partition, offset in ((1, 1), (1, 9), (0, 0)):
        shop.reject(
            b"4", reason="processing", partition=partition, offset=offset, step="store totals"
        )
    began = time.monotonic()
    assert shop.redrive()[0] == 0
    outcome: Counter[str] = Counter()
    for reason in ("contract", "too_large", "processing"):
        outcome.update(shop.redrive(reason=reason)[1])
    assert time.monotonic() - began < 10
    assert outcome == {
        "the pipeline does not read its topic": 1,
        "not a record of a source topic": 2,
        "its topic has no such partition any more": 1,
        "the record is no longer in its topic": 3,
    }
    assert [record.value() for record in shop.records] == [b"kept"]


def test_without_dead_letters_there_is_nothing_to_do(kafka: EmbeddedKafka) -> None:
    assert (
        redrive(
            {"bootstrap.servers": kafka.bootstrap}, "nobody", ["x"], DeadLetterFilter()
        ).redriven
        == 0
    )
    assert (
        find_dead_letters(
            {"bootstrap.servers": kafka.bootstrap}, "nobody", DeadLetterFilter(), 10
        ).letters
        == []
    )


def test_a_limit_leaves_the_rest_for_the_next_time(shop: Shop) -> None:
    for number in range(3):
        shop.reject(b"%d" % number)
    done = redrive(shop.kafka, shop.name, [shop.name], DeadLetterFilter(), limit=2)
    assert (done.redriven, done.more) == (2, True)
    assert shop.redrive() == (1, {"re-driven already": 2})
    assert sorted(record.value() or b"" for record in shop.records) == [b"0", b"1", b"2"]
