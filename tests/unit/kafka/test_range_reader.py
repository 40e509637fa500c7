"""What a reader of ranges does while no records arrive. tests/engine/test_kafka_records.py reads from a real broker."""

from __future__ import annotations

import json

import pytest

from sluice.errors import BrokersUnreachable
from sluice.kafka import range_reader
from sluice.kafka.range_reader import RangeReader
from sluice.values.record_places import Range
from tests.support.ports import free_port


def test_silence_is_an_error_that_names_the_partition_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "LONGEST_SILENCE_S", 0.3)
    address = f"127.0.0.1:{free_port()}"
    silent = rf"No record of sales, partition 3, has arrived for 0 s\. Kafka at {address} .* Connection refused\. Check"
    with RangeReader({"bootstrap.servers": address}) as reader, pytest.raises(BrokersUnreachable, match=silent):
        list(reader.read([Range("sales", 3, 10, 20)]))


def test_a_client_that_fetches_records_which_nobody_may_see_is_not_silent() -> None:
    """An aborted transaction can be so long that the client fetches it for minutes and returns no record."""
    with RangeReader({"bootstrap.servers": f"127.0.0.1:{free_port()}"}) as reader:
        reader._fetched, reader._answered_s = {("sales", 3): 10}, 0.0
        other = {"partitions": {"0": {"partition": 0, "next_offset": 70}}}
        for next_offset, is_progress in ((10, False), (12, True)):
            sales = {"partitions": {"-1": {"next_offset": -1001}, "3": {"next_offset": next_offset}}}
            reader._note_progress(json.dumps({"name": "client", "topics": {"other": other, "sales": sales}}))
            assert (reader._answered_s > 0.0) is is_progress
