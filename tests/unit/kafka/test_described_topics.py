"""Kafka is asked only for the topics that are needed, because a cluster may have thousands."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from sluice.engine.batch import job_topics
from sluice.engine.batch.job_topics import ensure_topics, partition_counts
from sluice.errors import EngineError


class Cluster:
    """An admin client of a cluster with the topic `sales`, which has three partitions.

    It cannot list all topics.
    """

    def __init__(self) -> None:
        self.described: list[str] = []
        self.error = KafkaError.UNKNOWN_TOPIC_OR_PART

    def describe_topics(
        self, topics: TopicCollection, include_authorized_operations: bool, request_timeout: float
    ) -> dict[str, Future[SimpleNamespace]]:
        futures: dict[str, Future[SimpleNamespace]] = {}
        for name in topics.topic_names:
            self.described.append(name)
            future: Future[SimpleNamespace] = Future()
            futures[name] = future
            if name == "sales":
                future.set_result(SimpleNamespace(partitions=[0, 1, 2]))
            else:
                future.set_exception(KafkaException(KafkaError(self.error, "No.")))
        return futures


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(job_topics, "silent_admin", lambda _: cluster)
    return cluster


def test_only_the_topics_of_a_run_are_described(cluster: Cluster) -> None:
    assert partition_counts({}, ["sales", "sales"]) == {"sales": 3}
    assert cluster.described == ["sales"]


def test_a_missing_topic_is_named(cluster: Cluster) -> None:
    with pytest.raises(EngineError, match=r"^There is no topic a, b\."):
        partition_counts({}, ["b", "sales", "a"])


def test_only_missing_topics_are_created(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[tuple[str, int, str]] = []
    monkeypatch.setattr(
        job_topics,
        "create_topics",
        lambda _, topics: created.extend(
            (t.name, t.partitions, t.config.get("cleanup.policy", "")) for t in topics
        ),
    )
    ensure_topics({}, {"sales": 5}, {})
    ensure_topics({}, {}, {})
    assert created == []
    ensure_topics({}, {"sales": 5, "markers": 1}, {"markers": {"cleanup.policy": "compact"}})
    assert created == [("markers", 1, "compact")]


def test_a_topic_that_cannot_be_described_is_not_taken_for_a_missing_one(cluster: Cluster) -> None:
    cluster.error = KafkaError._TIMED_OUT
    with pytest.raises(
        EngineError, match=r"^Listing the topics, Kafka at broker:9092: No\."
    ) as failed:
        ensure_topics({"bootstrap.servers": "broker:9092"}, {"sales": 1, "markers": 1}, {})
    assert "broker is running" in failed.value.next_step
