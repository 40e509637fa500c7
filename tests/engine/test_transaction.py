"""The Kafka transaction of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from xxhash import xxh3_64_intdigest

from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.publish import kafka_transaction
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.markers import Writer
from sluice.errors import BatchDiffers
from sluice.kafka.topics import read_topic
from sluice.local.broker import EmbeddedKafka
from sluice.state.ledger.history import Batch
from sluice.state.model import GenerationRef
from tests.faults.world import wait_until

pytestmark = pytest.mark.engine


class Topic:
    """A topic, and an output that writes to it."""

    def __init__(self, kafka: EmbeddedKafka, name: str) -> None:
        self.name, self.config = name, {"bootstrap.servers": kafka.bootstrap}
        kafka.create_topics({name: 1, f"{name}_markers": 1})
        self.writer = Writer(GenerationRef(name, 1), f"{name}_markers")

    def output(self) -> TransactionalOutput:
        return TransactionalOutput(self.config, self.writer, {self.name: TopicLimits()})

    def records(self, *values: str) -> tuple[str, pa.Table]:
        column = pa.array([value.encode() for value in values], pa.binary())
        return self.name, pa.table({"key": column, "value": column})

    def values(self) -> list[str]:
        return [(message.value() or b"").decode() for message in read_topic(self.config, self.name)]

    def has_open_transaction(self) -> bool:
        """Whether readers of committed records wait for the end of a transaction."""
        partition, admin = TopicPartition(self.name, 0), AdminClient({**self.config})
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        futures = [
            admin.list_offsets({partition: latest}, isolation_level=level)[partition]
            for level in levels
        ]
        committed, written = (int(future.result(30).offset) for future in futures)
        return committed < written


@pytest.fixture
def topic(kafka: EmbeddedKafka, fresh_name: Callable[[str], str]) -> Topic:
    return Topic(kafka, fresh_name("started"))


def batch(number: int) -> Batch:
    return Batch(number=number, begun=0, partitions={}, ends={})


def test_batches_are_written_one_after_the_other(topic: Topic) -> None:
    with topic.output() as output:
        assert output.send(batch(0), [topic.records("a"), topic.records("b", "c")]) == {
            topic.name: 3
        }
        # A broker shows the records of a committed transaction a moment later.
        assert wait_until(lambda: topic.values() == ["a", "b", "c"], 10)
        output.send(batch(1), [topic.records("d")])
    assert topic.values() == ["a", "b", "c", "d"]


def test_a_batch_whose_marker_is_written_is_not_written_again(topic: Topic) -> None:
    with topic.output() as output:
        output.send(batch(0), [topic.records("a")])
    with topic.output() as output:
        assert output.send(batch(0), [topic.records("a")]) == {topic.name: 1}
        assert not topic.has_open_transaction()
    assert topic.values() == ["a"]


@pytest.mark.fault("F42", "the records of a batch are others when it is repeated")
@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (["a"], "got 2 records, and would get 1 now"),
        ([], "got 2 records, and would get 0 now"),
        (["a", "b", "c"], "got 2 records, and would get 3 now"),
        (["a", "c"], "have other contents"),
    ],
)
def test_a_retried_batch_with_other_records_is_refused(
    topic: Topic, now: list[str], difference: str
) -> None:
    with topic.output() as output:
        output.send(batch(0), [topic.records("a"), topic.records("b")])
    with topic.output() as output:
        with pytest.raises(
            BatchDiffers, match=f"Batch 0 of {topic.name} was written.*{difference}"
        ) as refused:
            output.send(batch(0), [topic.records(*now)] if now else [])
        assert f"sluice rebuild {topic.name}" in refused.value.next_step
        assert not topic.has_open_transaction()
        assert output.send(batch(0), [topic.records("b", "a")]) == {topic.name: 2}
    assert topic.values() == ["a", "b"]


def test_records_differ_by_keys_values_and_timestamps_but_not_by_headers_and_order() -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    def total(*records: tuple[bytes | None, bytes | None, int], headers: str = "") -> int:
        keys, values, times = zip(*records, strict=True)
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": times,
        }
        own = pa.array([[{"key": headers, "value": b""}]] * len(records), header)
        return kafka_transaction.checksum(pa.table(columns | {"headers": own}))

    several = [(b"k", b"v", 5), (b"k", b"v", 5), (b"", b"v", 5)]
    assert total(*several) == total(*several[::-1], headers="another")
    different = [(b"k", b"v", 5), (None, b"v", 5), (b"", b"v", 5), (b"k", None, 5), (b"k", b"", 5), (b"k", b"v", 6),
                 (b"kv", b"", 5), (b"", b"kv", 5), (None, None, 5)]  # fmt: skip
    assert len({total(record, (b"x", b"x", 0)) for record in different}) == len(different)


def test_checksums_are_those_of_earlier_markers() -> None:
    records = {
        "key": ["a", None, ""],
        "value": [None, "v", ""],
        "timestamp": [5, None, 1_700_000_000_000],
    }
    begins = [5 + 2_654_435_761 * 5, 0, 1_700_000_000_000 + 2_654_435_761 * 2]
    starts = [
        xxh3_64_intdigest(key, begin % 2**32)
        for key, begin in zip((b"a", b"", b""), begins, strict=True)
    ]
    each = [
        xxh3_64_intdigest(value, start)
        for value, start in zip((b"", b"v", b""), starts, strict=True)
    ]
    assert kafka_transaction.checksum(pa.table(records)) == sum(each)


def test_a_marker_waits_for_a_place_in_the_full_queue(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"queue.buffering.max.messages": "2", "linger.ms": "200"}
    monkeypatch.setattr(kafka_transaction, "_FAST", kafka_transaction._FAST | full)
    with topic.output() as output:
        assert output.send(batch(0), [topic.records("a", "b")]) == {topic.name: 2}
    assert topic.values() == ["a", "b"]
