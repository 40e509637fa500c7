"""The headers of records are read again, also of those after records that retention has removed meanwhile."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sluice.engine.read.reread_headers import headers_at
from sluice.local.broker import EmbeddedKafka

pytestmark = pytest.mark.integration


def test_removed_records_do_not_hide_later_ones(kafka: EmbeddedKafka) -> None:
    topic, clients = "retained", {"bootstrap.servers": kafka.bootstrap, "log_level": "0"}
    kafka.create_topics({topic: 1})
    producer = Producer({**clients})
    for number in range(4):
        producer.produce(topic, b"", headers=[("number", b"%d" % number)])
    assert producer.flush(20) == 0
    admin = AdminClient({**clients})  # its futures need it until they are done
    for done in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        done.result(20)
    # A record at the offset 9 has never existed, or was lost with a broker's disk.
    found = headers_at(clients, [(topic, 0, offset) for offset in (0, 1, 2, 3, 9)])
    assert found == {
        (topic, 0, offset): [{"key": "number", "value": b"%d" % offset}] for offset in (2, 3)
    }
