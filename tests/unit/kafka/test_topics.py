"""Topics that were created a moment ago, with a broker that is slow to list and to lead them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sluice.errors import EngineError
from sluice.kafka import topics
from sluice.kafka.topics import Topic, create_topics, watermark_offsets


class SlowBroker:
    """An admin client.

    The controller creates a topic at once; the broker lists it in its third answer.
    """

    answers = 0
    error: int | None = None
    """Kafka's code of the error with which the controller answers."""

    def create_topics(self, wanted: list[Any]) -> dict[str, Future[None]]:
        created: Future[None] = Future()
        if self.error is None:
            created.set_result(None)
        else:
            created.set_exception(KafkaException(KafkaError(self.error, "No.")))
        return {topic.topic: created for topic in wanted}

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        self.answers += 1
        is_listed = topic == "sales" and self.answers >= 3
        error = None if is_listed else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> SlowBroker:
    broker = SlowBroker()
    monkeypatch.setattr(topics, "silent_admin", lambda _: broker)
    monkeypatch.setattr(topics, "require_brokers", lambda _: None)
    monkeypatch.setattr(topics, "_LISTED_AFTER_S", 0)
    return broker


def test_a_created_topic_can_be_written_and_read_at_once(broker: SlowBroker) -> None:
    assert create_topics({}, [Topic("sales")]) == ("sales",)
    assert broker.answers == 3


def test_a_topic_that_no_broker_lists_is_reported(
    broker: SlowBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_TIMEOUT_S", 0)
    with pytest.raises(
        EngineError, match="Topic another was created, but the broker has not listed it"
    ):
        create_topics({}, [Topic("another")])


def test_a_topic_that_another_client_has_just_created_can_be_written_at_once(
    broker: SlowBroker,
) -> None:
    broker.error = KafkaError.TOPIC_ALREADY_EXISTS
    assert create_topics({}, [Topic("sales")]) == ()
    assert broker.answers == 3


def test_a_topic_that_kafka_refuses_is_reported_with_the_reason(broker: SlowBroker) -> None:
    broker.error = KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(
        EngineError, match=r"^Topic sales was not created: No\. Create the topic yourself"
    ):
        create_topics({}, [Topic("sales")])


class SlowLeader:
    """A consumer of a broker that answers with errors first."""

    def __init__(self, *errors: int) -> None:
        self.errors = [*errors]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop(0)))
        return 0, 7


def test_the_offsets_of_a_new_partition_are_read_when_a_broker_leads_it(broker: SlowBroker) -> None:
    consumer: Any = SlowLeader(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)
    assert watermark_offsets(consumer, TopicPartition("sales", 0), 20) == (0, 7)


@pytest.mark.parametrize(
    ("code", "timeout_s"),
    [(KafkaError.NOT_LEADER_FOR_PARTITION, -1), (KafkaError.TOPIC_AUTHORIZATION_FAILED, 20)],
    ids=["no leader in time", "another error"],
)
def test_other_errors_of_the_broker_are_raised(
    code: int, timeout_s: float, broker: SlowBroker
) -> None:
    consumer: Any = SlowLeader(code)
    with pytest.raises(KafkaException):
        watermark_offsets(consumer, TopicPartition("sales", 0), timeout_s)
