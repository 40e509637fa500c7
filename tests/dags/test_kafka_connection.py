"""The settings of Kafka come from Airflow's connection, and from SLUICE_KAFKA only if there is none."""

from __future__ import annotations

import json

import pytest

from sluice.airflow_connections import kafka_or_settings, registry_or_settings
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


def test_the_schema_registry_comes_from_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {
        "conn_type": "http", "host": "registry", "schema": "https", "port": 8081, "login": "me",
        "password": "secret", "extra": {"ssl.ca.location": "/ca.pem", "max.retries": 1},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", json.dumps(connection))
    assert registry_or_settings() == {
        "url": "https://registry:8081",
        "basic.auth.user.info": "me:secret",
        "ssl.ca.location": "/ca.pem",
        "max.retries": "1",
    }
    monkeypatch.delenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT")
    assert registry_or_settings("missing") == settings().registry
