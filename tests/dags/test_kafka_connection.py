"""The settings of Kafka come from Airflow's connection, and from SLUICE_KAFKA only if there is none."""

from __future__ import annotations

import json

import pytest

from sluice.airflow_connections import kafka_or_settings
from sluice.errors import SettingsError
from sluice.settings import settings


def test_a_connection_that_cannot_be_used_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"group.id": "no brokers"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra})
    )
    with pytest.raises(SettingsError, match="kafka_default"):
        kafka_or_settings()


def test_without_a_connection_the_settings_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT", raising=False)
    monkeypatch.setattr("sluice.airflow_connections.KAFKA", "missing")
    assert kafka_or_settings() == settings().kafka
