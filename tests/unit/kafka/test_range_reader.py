"""What a reader of ranges reads, and when it gives up.

The client's own stand-in for a cluster has no transactions and no retention, so
tests/engine/test_kafka_records.py tests them with a real broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Message, Producer
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import BrokersUnreachable, EngineError
from sluice.kafka import dead_letter_topic, range_reader
from sluice.kafka.dead_letter_topic import DeadLetterFilter, chosen_letters
from sluice.kafka.range_reader import RangeReader
from sluice.kafka.topics import read_topic, records_at
from sluice.values.record_places import Range
from tests.support.ports import free_port

Kafka = dict[str, str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kafka]:
    """A stand-in for a cluster.

    In its topic `numbers`, the partitions 0 and 1 have 2,000 records each.
    """
    producer = Producer(
        {"bootstrap.servers": "unused", "test.mock.num.brokers": "2", "log_level": 0}
    )
    for number in range(4_000):
        producer.produce("numbers", b"%d" % number, partition=number % 2, timestamp=number + 1)
    assert producer.flush(20) == 0
    brokers = producer.list_topics(timeout=20).brokers.values()
    yield {
        "bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers),
        "log_level": "0",
    }
    # The cluster ends with this client.
    del producer


def test_ranges_of_several_partitions_are_read_at_the_same_time(cluster: Kafka) -> None:
    ranges = [
        Range("numbers", 0, 3, 5),
        Range("numbers", 1, 1_998, 2_000),
        Range("numbers", 2, 0, 0),
    ]
    offsets: dict[int, list[int]] = {0: [], 1: []}
    with RangeReader(cluster) as reader:
        # A reader can be used again, also for a partition that it has read.
        for again in (ranges, [Range("numbers", 0, 0, 2)]):
            for records in reader.read(again):
                offsets[records.partition[1]] += records.offsets.tolist()
            assert not reader.unread
    assert offsets == {0: [3, 4, 0, 1], 1: [1_998, 1_999]}


@pytest.mark.parametrize(
    ("begin", "end", "lost"), [(1_999, 2_003, "2000 to 2002"), (2_005, 2_006, "2005 to 2005")]
)
def test_a_range_after_the_end_of_a_partition_is_an_error_or_left_out(
    cluster: Kafka, begin: int, end: int, lost: str
) -> None:
    part = Range("numbers", 1, begin, end)
    with (
        RangeReader(cluster) as reader,
        pytest.raises(EngineError, match=f"the batch has to read offsets {lost}, but") as error,
    ):
        list(reader.read([part]))
    assert "numbers, partition 1, has lost records" in str(error.value)
    assert "begins at offset 0 and ends before offset 2000. Possible causes" in str(error.value)
    with RangeReader(cluster, skips_lost=True) as reader:
        rest = [offset for records in reader.read([part]) for offset in records.offsets.tolist()]
    assert rest == [*range(begin, 2_000)]


def test_records_at_any_places_are_read(cluster: Kafka) -> None:
    # Some places are near to one another, some are far away, and at some there is no record.
    places = [
        ("numbers", number, offset) for number in (0, 1) for offset in (0, 3, 4, 1_999, 2_500)
    ]
    records = {place: record.value() for place, record in records_at(cluster, places)}
    assert records == {
        place: b"%d" % (place[2] * 2 + place[1]) for place in places if place[2] < 2_000
    }
    assert dict(records_at(cluster, [])) == {}


def test_a_topic_is_read_to_the_end_that_it_has_at_the_start(cluster: Kafka) -> None:
    read = sorted(int(record.value() or b"") for record in read_topic(cluster, "numbers"))
    assert read == [*range(4_000)]


def test_fewer_records_are_asked_for_at_once_if_they_are_large(
    cluster: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_BYTES_AT_ONCE", 40)
    with RangeReader(cluster) as reader:
        records = next(reader.read([Range("numbers", 0, 600, 700)]))
    assert len(records.messages[0]) == len(b"1200")
    assert range_reader._count_at_once(records.messages) == 10


@given(
    begin=st.integers(0, 2**40),
    gaps=st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=1, max_size=20),
    end=st.integers(0, 30),
)
def test_offsets_are_those_of_the_messages_wherever_some_are_missing(
    begin: int, gaps: list[int], end: int
) -> None:
    """Compaction leaves gaps, as do markers of transactions.

    The last records may be after the end of the range.
    """
    offsets = [begin + number + sum(gaps[: number + 1]) for number in range(len(gaps))]
    part = Range("numbers", 0, begin, begin + end)
    with RangeReader({"bootstrap.servers": "unused"}) as reader:
        reader._ranges = {("numbers", 0): part}
        messages = [Message(topic="numbers", partition=0, offset=offset) for offset in offsets]
        found = [*reader._of_ranges(messages)]
    assert [message.offset() for records in found for message in records.messages] == [
        offset for offset in offsets if offset < part.end
    ]
    for records in found:
        assert records.offsets.dtype == "int64"
        assert records.offsets.tolist() == [message.offset() for message in records.messages]
    assert reader._positions == {("numbers", 0): offsets[-1] + 1}


def test_a_partition_that_no_broker_knows_is_an_error(
    cluster: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_QUESTION_S", 0.1)
    gone = (
        r"Reading numbers, partition 9 from .*Unknown topic or partition\. "
        r"The topic was deleted, or was created again"
    )
    with RangeReader(cluster) as reader, pytest.raises(EngineError, match=gone):
        list(reader.read([Range("numbers", 9, 0, 1)]))


def test_silence_is_an_error_that_names_the_partition_and_the_reason() -> None:
    address = f"127.0.0.1:{free_port()}"
    silent = rf"No record of sales, partition 3, has arrived for 0 s\. Kafka at {address} .* Connection refused\. Check"
    with (
        RangeReader({"bootstrap.servers": address}, longest_silence_s=0.3) as reader,
        pytest.raises(BrokersUnreachable, match=silent),
    ):
        list(reader.read([Range("sales", 3, 10, 20)]))


def test_a_search_through_dead_letters_does_not_wait_long_for_a_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dead_letter_topic, "_READ_SECONDS", 1.0)
    settings = {
        "bootstrap.servers": "unused",
        "test.mock.num.brokers": "1",
        "log_level": 0,
        "batch.num.messages": 100,
    }
    producer = Producer(settings)
    for _ in range(20_000):
        producer.produce("sales_dead_letters", b"x", partition=0)
    assert producer.flush(20) == 0
    (broker,) = producer.list_topics(timeout=20).brokers.values()
    # The client must not have fetched all records before the broker falls silent.
    kafka = {
        "bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": "0",
        "queued.min.messages": "1", "queued.max.messages.kbytes": "1", "max.partition.fetch.bytes": "1000",
    }  # fmt: skip
    letters = chosen_letters(kafka, "sales", DeadLetterFilter())
    assert next(letters).offset == 0
    # The stand-in for a broker ends with this client.
    del producer
    with pytest.raises(
        BrokersUnreachable,
        match=r"No record of sales_dead_letters, partition 0, has arrived for 1 s\.",
    ):
        list(letters)


def test_a_client_that_fetches_records_which_nobody_may_see_is_not_silent() -> None:
    """An aborted transaction can be so long that the client fetches it for minutes and returns no record."""
    with RangeReader({"bootstrap.servers": f"127.0.0.1:{free_port()}"}) as reader:
        reader._fetched, reader._answered_s = {("sales", 3): 10}, 0.0
        other = {"partitions": {"0": {"partition": 0, "next_offset": 70}}}
        for next_offset, is_progress in ((10, False), (12, True)):
            sales = {
                "partitions": {"-1": {"next_offset": -1001}, "3": {"next_offset": next_offset}}
            }
            reader._note_progress(
                json.dumps({"name": "client", "topics": {"other": other, "sales": sales}})
            )
            assert (reader._answered_s > 0.0) is is_progress
