"""The records that a task reads from a real broker."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sluice.engine.batch.record_headers import headers_of
from sluice.engine.batch.side_outputs import NOTHING
from sluice.engine.read.backlog_timestamps import KafkaTimestamps
from sluice.engine.read.kafka_records import RECORDS, read_ranges
from sluice.errors import EngineError
from sluice.kafka.range_reader import RangeReader
from sluice.kafka.record_times import timestamps_at
from sluice.local.broker import EmbeddedKafka
from sluice.values.record_places import Range

TIME = 1_670_230_527_123
Rows = list[dict[str, Any]]


def read(kafka: EmbeddedKafka, *ranges: Range) -> Rows:
    batches = list(read_ranges({"bootstrap.servers": kafka.bootstrap}, ranges))
    assert all(batch.schema == RECORDS for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def values(rows: Rows) -> list[str]:
    return [row["value"].decode() for row in rows]


def send(kafka: EmbeddedKafka, topic: str, *texts: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for text in texts:
        producer.produce(topic, text, partition=partition)
    assert producer.flush(20) == 0


def test_a_record_arrives_with_all_of_its_parts(kafka: EmbeddedKafka) -> None:
    kafka.create_topics({"parts": 1})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", b"\xff\x00"), ("none", None), ("trace", b"again"), ("näme", b"")
    ]  # fmt: skip
    producer.produce("parts", b"\x00value", b"\xffkey", timestamp=TIME, headers=headers)
    producer.produce("parts", None, None, timestamp=TIME + 1)
    producer.produce("parts", b"", b"", timestamp=TIME - 1)
    assert producer.flush(20) == 0
    first, second, third = read(kafka, Range("parts", 0, 0, 3))
    assert (first["topic"], first["partition"], first["offset"]) == ("parts", 0, 0)
    assert (first["key"], first["value"]) == (b"\xffkey", b"\x00value")
    assert round(first["timestamp"].timestamp() * 1_000) == TIME
    assert [(header["key"], header["value"]) for header in headers_of(first["headers"])] == headers
    assert (second["key"], second["value"], second["headers"]) == (None, None, None)
    assert (third["key"], third["value"], third["offset"]) == (b"", b"", 2)


def test_a_task_reads_its_ranges_and_nothing_else(kafka: EmbeddedKafka) -> None:
    """Records before and after a range belong to other batches."""
    kafka.create_topics({"ranges": 2})
    send(kafka, "ranges", *map(str, range(10)))
    send(kafka, "ranges", *"abc", partition=1)
    rows = read(
        kafka, Range("ranges", 0, 3, 7), Range("ranges", 1, 0, 3), Range("ranges", 0, 9, 10)
    )
    assert values(rows) == ["3", "4", "5", "6", "a", "b", "c", "9"]
    assert read(kafka, Range("ranges", 0, 4, 4)) == []


def test_records_of_aborted_transactions_are_left_out_wherever_a_range_ends(
    kafka: EmbeddedKafka,
) -> None:
    kafka.create_topics({"transactions": 1})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "records"})
    producer.init_transactions(20)
    for text, end in (
        ("a", producer.commit_transaction),
        ("x", producer.abort_transaction),
        ("b", producer.commit_transaction),
        ("y", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce("transactions", text)
        producer.flush(20)
        end(20)
    # Each record is followed by the marker of its transaction.
    seen = {end: values(read(kafka, Range("transactions", 0, 0, end))) for end in range(1, 9)}
    assert seen == {end: ["a"] if end < 5 else ["a", "b"] for end in range(1, 9)}
    assert values(read(kafka, Range("transactions", 0, 5, 8))) == []


def test_a_range_that_was_left_gives_no_more_records(kafka: EmbeddedKafka) -> None:
    kafka.create_topics({"left": 2})
    for partition in (0, 1):
        send(kafka, "left", *map(str, range(30_000)), partition=partition)
    counts = Counter[int]()
    with RangeReader({"bootstrap.servers": kafka.bootstrap}) as reader:
        for (_, partition), messages, _ in reader.read(
            [Range("left", number, 0, 30_000) for number in (0, 1)]
        ):
            counts[partition] += len(messages)
            reader.leave(("left", 0))
        assert reader.unread == {("left", 0)}
        assert counts[1] == 30_000
        assert counts[0] <= 4_000
        # The next reading has all records again.
        again = reader.read([Range("left", 0, 0, 30_000)])
        assert sum(len(messages) for _, messages, _ in again) == 30_000


def test_a_record_may_be_larger_than_what_a_task_asks_for_at_once(kafka: EmbeddedKafka) -> None:
    kafka.create_topics({"large": 1}, {"max.message.bytes": "20000000"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 20_000_000})
    for size in (1, 18_000_000, 5_000_000, 1):
        producer.produce("large", bytes(size))
        assert producer.flush(60) == 0
    assert [len(row["value"]) for row in read(kafka, Range("large", 0, 0, 4))] == [
        1,
        18_000_000,
        5_000_000,
        1,
    ]


def test_a_range_that_its_topic_does_not_have_is_an_error_at_once(kafka: EmbeddedKafka) -> None:
    """Retention has removed records since the driver planned the batch, or the topic was created again."""
    kafka.create_topics({"removed": 1})
    send(kafka, "removed", *map(str, range(10)))
    place = TopicPartition("removed", 0, 5)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([place])[place].result(20)
    assert values(read(kafka, Range("removed", 0, 5, 10))) == ["5", "6", "7", "8", "9"]
    for begin, end, first_lost in ((4, 10, 4), (5, 11, 10), (10, 11, 10), (12, 14, 12)):
        lost = (
            "removed, partition 0, has lost records: the batch has to read offsets "
            f"{first_lost} to {end - 1}, but the partition begins at offset 5 and ends before offset 10"
        )
        with pytest.raises(EngineError, match=lost):
            read(kafka, Range("removed", 0, begin, end))


def test_records_of_open_transactions_are_no_part_of_a_topic(kafka: EmbeddedKafka) -> None:
    """A plan never ends after such a record."""
    kafka.create_topics({"open": 1})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "open"})
    producer.init_transactions(20)
    send(kafka, "open", "before")
    producer.begin_transaction()
    producer.produce("open", "held")
    producer.flush(20)
    assert values(read(kafka, Range("open", 0, 0, 1))) == ["before"]
    with pytest.raises(
        EngineError, match=r"the batch has to read offsets 1 to 1, .* ends before offset 1"
    ):
        read(kafka, Range("open", 0, 0, 2))
    producer.abort_transaction(20)


def test_any_number_of_64_bits_can_be_a_timestamp(kafka: EmbeddedKafka) -> None:
    """A producer may write nanoseconds, or nothing.

    Such a time stays far in the future or in the past.
    """
    kafka.create_topics({"times": 1}, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    times = [1, -1, -(10**15), TIME * 1_000_000, 2**63 - 1, -(2**62)]
    for time in times:
        producer.produce("times", b"", timestamp=time)
    assert producer.flush(20) == 0
    (batch,) = read_ranges(
        {"bootstrap.servers": kafka.bootstrap}, [Range("times", 0, 0, len(times))]
    )
    last = (2**63 - 1) // 1_000
    in_ms = batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
    assert in_ms == [1, -1, -(10**15), last, last, -last]
    # The backlog is divided by the same times, and the oldest unread record has a date.
    with KafkaTimestamps.of(
        {"bootstrap.servers": kafka.bootstrap}, {("times", 0): len(times)}
    ) as timestamps:
        assert timestamps.read({("times", 0): 0}, 10)["times", 0].timestamps.tolist() == in_ms
        assert timestamps.latest() == last
    for offset, year in ((2, 1), (3, 9999)):
        assert (
            timestamps_at({"bootstrap.servers": kafka.bootstrap}, {("times", 0): offset})[
                "times", 0
            ].year
            == year
        )


def test_the_size_of_records_is_known_from_the_first_of_each_partition(
    kafka: EmbeddedKafka,
) -> None:
    kafka.create_topics({"sizes": 3})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    random = Random(7)
    for _ in range(1_000):
        producer.produce("sizes", random.randbytes(1_000), key=b"key", partition=0)
    for _ in range(3_000):
        producer.produce("sizes", b"x" * 200, partition=1)
    assert producer.flush(20) == 0
    ends = {("sizes", 0): 1_000, ("sizes", 1): 3_000, ("sizes", 2): 0}
    with KafkaTimestamps.of({"bootstrap.servers": kafka.bootstrap}, ends) as records:
        size = records.mean_size(dict.fromkeys(ends, 0))
        assert size.plain == pytest.approx((1_000 * 1_003 + 3_000 * 200) / 4_000)
        assert 250 < size.compressed < 260, "one byte in four is random"
        assert records.mean_size(ends) == NOTHING


def test_clients_leave_no_threads_and_files_behind(kafka: EmbeddedKafka) -> None:
    """Spark uses its Python workers for many tasks, of which some end before they have read everything."""
    kafka.create_topics({"closed": 1})
    send(kafka, "closed", "a", "b")
    process = psutil.Process()

    def read_and_count() -> tuple[int, int]:
        for _ in range(5):
            read(kafka, Range("closed", 0, 0, 2))
            next(read_ranges({"bootstrap.servers": kafka.bootstrap}, [Range("closed", 0, 0, 2)]))
        return process.num_threads(), process.num_fds()

    assert read_and_count() == read_and_count()
