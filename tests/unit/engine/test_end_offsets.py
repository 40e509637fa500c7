"""The end offsets of partitions: a client is connected before it is asked for them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from sluice.engine.read import backlog_timestamps


class SlowAdmin:
    """A client that lists no offsets before it is connected."""

    def __init__(self, _: object) -> None:
        self._is_connected = False

    def describe_cluster(self, request_timeout: float) -> Future[None]:
        answer: Future[None] = Future()
        self._is_connected = True
        answer.set_result(None)
        return answer

    def list_offsets(
        self, partitions: Iterable[TopicPartition], **_: Any
    ) -> dict[TopicPartition, Future[Any]]:
        if not self._is_connected:
            raise TimeoutError("The client would find the partitions' leaders seconds later.")
        listed: dict[TopicPartition, Future[Any]] = {}
        for partition in partitions:
            listed[partition] = Future()
            listed[partition].set_result(SimpleNamespace(offset=7))
        return listed


def test_a_client_is_connected_before_it_is_asked_for_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog_timestamps, "silent_admin", SlowAdmin)
    assert backlog_timestamps.end_offsets({}, [("orders", 0), ("orders", 1)]) == {
        ("orders", 0): 7,
        ("orders", 1): 7,
    }
