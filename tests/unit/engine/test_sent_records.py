"""The records that the driver passes to Kafka's client, a few at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.batch.record_headers import HEADERS
from sluice.engine.publish import kafka_transaction

Record = dict[str, Any]
HEADER = st.fixed_dictionaries(
    {"key": st.text(max_size=2), "value": st.none() | st.binary(max_size=2)}
)
RECORD = st.fixed_dictionaries(
    {
        "key": st.none() | st.binary(max_size=3),
        "value": st.none() | st.binary(max_size=3),
        "timestamp": st.none() | st.integers(-1, 2**41),
        "partition": st.none() | st.integers(-1, 9),
        "headers": st.none() | st.lists(HEADER, max_size=2),
    }
)
SCHEMA = pa.schema([
    ("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64()), ("partition", pa.int32()),
    ("headers", HEADERS),
])  # fmt: skip


class Client:
    """Keeps what it gets. Its topics have four partitions."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def produce(self, *arguments: Any) -> None:
        self.sent.append(arguments)

    def poll(self, _: float) -> None:
        pass

    def list_topics(self, topic: str, _: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=range(4))})


def arguments(record: Record) -> tuple[Any, ...]:
    number = record["partition"]
    headers = [(header["key"], header["value"]) for header in record["headers"] or ()]
    partition = -1 if number is None or number < 0 else number % 4
    return (
        "sales",
        record["value"],
        record["key"],
        partition,
        None,
        None,
        record["timestamp"] or 0,
        headers or None,
    )


@given(st.lists(st.lists(RECORD, max_size=4), max_size=3), st.integers(1, 5), st.integers(0, 3))
def test_every_record_is_sent_once_and_in_order_with_all_of_its_parts(
    chunks: list[list[Record]], at_once: int, begin: int
) -> None:
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist(rows, SCHEMA) for rows in chunks], SCHEMA
    ).slice(begin)
    client: Any = Client()
    whole = kafka_transaction.checksum(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_transaction, "_CHUNK", at_once)
        assert kafka_transaction._produce(client, "sales", table) == whole
    assert client.sent == [arguments(record) for chunk in chunks for record in chunk][begin:]
