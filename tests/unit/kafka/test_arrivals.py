"""What ends a wait for records."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.kafka.arrivals import Arrivals
from sluice.kafka.unread_records import Offsets

LONG_S = 60.0


class Cluster:
    """The client's own stand-in for a cluster."""

    def __init__(self) -> None:
        self._producer = Producer(
            {"bootstrap.servers": "unused", "test.mock.num.brokers": "2", "log_level": 0}
        )
        brokers = self._producer.list_topics(timeout=20).brokers.values()
        self.kafka = {
            "bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers),
            "log_level": "0",
        }

    def send(self, topic: str, partition: int = 0, count: int = 1) -> None:
        for _ in range(count):
            self._producer.produce(topic, b"value", partition=partition)
        assert self._producer.flush(20) == 0


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def arrivals(cluster: Cluster) -> Iterator[Arrivals]:
    with closing(Arrivals(cluster.kafka)) as arrivals:
        yield arrivals


def waited_s(arrivals: Arrivals, positions: Offsets, seconds: float) -> float:
    begun = time.monotonic()
    arrivals.wait(positions, seconds)
    return time.monotonic() - begun


def test_a_record_in_any_partition_ends_the_wait(cluster: Cluster, arrivals: Arrivals) -> None:
    for partition in (0, 1):
        cluster.send("sales", partition, count=2)
    later = threading.Timer(0.2, cluster.send, ["sales", 1])
    later.start()
    assert waited_s(arrivals, {"sales": {0: 2, 1: 2}}, LONG_S) < LONG_S / 2
    later.join()


def test_a_record_that_has_arrived_before_ends_the_wait(
    cluster: Cluster, arrivals: Arrivals
) -> None:
    cluster.send("early", count=5)
    assert waited_s(arrivals, {"early": {0: 3}}, LONG_S) < LONG_S / 2
    # The run has read all of them.
    arrivals.rest()
    assert waited_s(arrivals, {"early": {0: 5}}, 0.5) >= 0.5
    # The topic has records that the run is to read again.
    assert waited_s(arrivals, {"early": {0: 0}}, LONG_S) < LONG_S / 2


@pytest.mark.parametrize("positions", [{}, {"missing": {0: 0}}, {"short": {0: 99}}])
def test_partitions_that_cannot_be_read_end_no_wait(
    cluster: Cluster, arrivals: Arrivals, positions: Offsets
) -> None:
    cluster.send("short")
    processor_s = time.process_time()
    for _ in range(2):
        assert waited_s(arrivals, positions, 0.5) >= 0.5
    assert time.process_time() - processor_s < 0.5, "waiting is no busy loop"


def test_brokers_that_are_away_end_no_wait() -> None:
    with closing(Arrivals({"bootstrap.servers": "127.0.0.1:1"})) as arrivals:
        assert waited_s(arrivals, {"sales": {0: 0}}, 0.5) >= 0.5


def test_a_client_that_never_waits_is_not_made() -> None:
    arrivals = Arrivals({"bootstrap.servers": "unused", "no.such.setting": "1"})
    arrivals.rest()
    arrivals.close()


def test_a_certificate_that_is_being_replaced_does_not_end_the_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    certificate = tmp_path / "ca.pem"
    certificate.write_text("half of it")
    kafka = {**cluster.kafka, "ssl.ca.location": str(certificate)}
    cluster.send("renewed")
    with closing(Arrivals({**kafka, "security.protocol": "ssl"})) as arrivals:
        assert waited_s(arrivals, {"renewed": {0: 0}}, 0.3) >= 0.3
