"""Creating topics with a broker that is slow to list them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.errors import EngineError
from sluice.kafka import topics
from sluice.kafka.topics import Topic, create_topics


class SlowBroker:
    """An admin client. The controller creates a topic at once; the broker lists it in its third answer."""

    answers = 0

    def create_topics(self, wanted: list[Any]) -> dict[str, Future[None]]:
        created: Future[None] = Future()
        created.set_result(None)
        return {topic.topic: created for topic in wanted}

    def list_topics(self, timeout: float) -> SimpleNamespace:
        self.answers += 1
        return SimpleNamespace(topics={"sales": None} if self.answers >= 3 else {})


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> SlowBroker:
    broker = SlowBroker()
    monkeypatch.setattr(topics, "AdminClient", lambda _: broker)
    monkeypatch.setattr(topics, "require_brokers", lambda _: None)
    monkeypatch.setattr(topics, "_LISTED_AFTER_S", 0)
    return broker


def test_a_created_topic_can_be_written_and_read_at_once(broker: SlowBroker) -> None:
    assert create_topics({}, [Topic("sales")]) == ("sales",)
    assert broker.answers == 3


def test_a_topic_that_no_broker_lists_is_reported(broker: SlowBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_TIMEOUT_S", 0)
    with pytest.raises(EngineError, match="Topic another was created, but the broker has not listed it"):
        create_topics({}, [Topic("another")])
