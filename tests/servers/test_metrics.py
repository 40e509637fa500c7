"""A state server serves the figures of all pipelines to Prometheus."""

from __future__ import annotations

import pytest

from tests.servers.hosts import Host

pytestmark = pytest.mark.servers


def test_figures_are_for_holders_of_the_token_and_there_without_a_broker(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)
    assert host.ask("GET", "/metrics", token=None).status_code == 401
    answer = host.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'sluice_batch_records{pipeline="orders"} 10\n' in answer.text
    assert "# TYPE sluice_state_bytes gauge\n" in answer.text
    assert "sluice_lag_records" not in answer.text
