"""A state server serves the figures of all pipelines to Prometheus."""

from __future__ import annotations

import re

import pytest

from tests.servers.hosts import Host
from tests.support.prometheus import promtool

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
    assert promtool("check", "metrics", text=answer.text) == ""


def test_requests_are_counted_by_what_they_ask_for(host: Host) -> None:
    assert host.get("/sluice/v1/stores").status_code == 200
    assert host.get("/sluice/v1/stores/nothing").status_code == 404
    text = host.get("/metrics").text
    for status in ("2xx", "4xx"):
        counted = re.search(
            rf'^sluice_request_duration_seconds_count{{for="rest",status="{status}"}} (\d+)$',
            text,
            re.MULTILINE,
        )
        assert counted is not None
        assert int(counted[1]) >= 1
