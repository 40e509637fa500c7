"""A real Prometheus scrapes a state server, and the alerts of the repository fire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from sluice.errors import EngineError
from sluice.state.ledger.failures import Failure
from tests.faults.world import wait_until
from tests.servers.hosts import TOKEN, Host
from tests.support.prometheus import prometheus
from tests.support.states import States

pytestmark = pytest.mark.servers


def asked(client: httpx.Client, path: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus; empty until it is ready."""
    try:
        answer = client.get(path, params=parameters)
    except httpx.TransportError:
        return {}
    return answer.json().get("data", {}) if answer.status_code == 200 else {}


def firing(client: httpx.Client) -> set[tuple[str, str]]:
    """The alerts that fire, with their pipelines."""
    alerts = asked(client, "/api/v1/alerts").get("alerts", ())
    return {
        (alert["labels"]["alertname"], alert["labels"].get("pipeline", ""))
        for alert in alerts
        if alert["state"] == "firing"
    }


def test_alerts_fire_and_pass(
    hosts: list[Host], states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.kafka.unread_records.ANSWER_SECONDS", 0.1)
    monkeypatch.setattr("sluice.observe.host_checks.OBSERVING_SECONDS", 1.0)
    failures = states.ledger.failures
    failures.keep(Failure.of(EngineError("A record cannot be read."), "orders"))
    with prometheus(tmp_path, hosts[0].address, TOKEN) as client:
        assert wait_until(lambda: ("PipelineFailed", "orders") in firing(client), 180, 0.2)
        (condition,) = asked(client, "/api/v1/query", query='sluice_condition{kind="run"}')[
            "result"
        ]
        assert (condition["metric"]["pipeline"], condition["value"][1]) == ("orders", "1")
        # Prometheus keeps the types and the descriptions of the page.
        metadata = asked(client, "/api/v1/metadata", metric="sluice_request_duration_seconds")
        assert metadata["sluice_request_duration_seconds"][0]["type"] == "histogram"

        failures.clear("orders", "run")
        # The server of worker 1 has stopped: the scraped server notices it by itself.
        hosts[1].stop()
        assert wait_until(lambda: ("HostSilent", "orders") in firing(client), 180, 0.2)
        assert ("PipelineFailed", "orders") not in firing(client)
