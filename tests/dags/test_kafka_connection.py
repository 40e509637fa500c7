"""The settings of Kafka come from Airflow's connection, and from SLUICE_KAFKA only if there is none."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from sluice.airflow_connections import (
    KafkaConfigHook,
    kafka_config,
    kafka_or_settings,
    registry_or_settings,
)
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


MSK = {
    "bootstrap.servers": "b-1.a.b.c2.kafka.eu-central-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
}
OIDC = {
    "bootstrap.servers": "broker.example:9095",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "sluice",
    "sasl.oauthbearer.client.secret": "secret-of-the-client",
    "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}
FUNCTION = "tests.support.token_functions.unsigned"


def connection(monkeypatch: pytest.MonkeyPatch, extra: dict[str, str]) -> dict[str, str]:
    """The settings that tasks get from a connection with this extra."""
    text = json.dumps({"conn_type": "kafka", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", text)
    return kafka_config()


def allow(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """Let Airflow's administrator allow a function in connections."""
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", function)


def test_settings_of_oidc_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connection(monkeypatch, OIDC) == OIDC


def test_a_function_for_tokens_is_passed_on_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, FUNCTION)
    extra = OIDC | {"oauth_cb": FUNCTION, "sasl.oauthbearer.method": "default"}
    assert connection(monkeypatch, extra) == extra


def test_a_function_that_airflow_does_not_allow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"kafka_default.*allowlist"):
        connection(monkeypatch, OIDC | {"oauth_cb": FUNCTION})


def test_another_function_than_that_for_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, FUNCTION)
    with pytest.raises(SettingsError, match="sets error_cb, but functions cannot be passed"):
        connection(monkeypatch, OIDC | {"error_cb": FUNCTION})


@pytest.fixture
def older_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka provider that leaves the names of functions as they are, such as version 1.12."""

    def extra(hook: KafkaConfigHook) -> Any:
        return hook.get_connection(hook.kafka_config_id).extra_dejson

    monkeypatch.setattr(KafkaConfigHook, "get_conn", property(extra))


@pytest.mark.usefixtures("older_provider")
def test_older_providers_call_no_function_that_airflow_does_not_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match=f"{FUNCTION}.*callback_allowlist"):
        connection(monkeypatch, OIDC | {"oauth_cb": FUNCTION})
    allow(monkeypatch, f"other.function, {FUNCTION}")
    assert connection(monkeypatch, OIDC | {"oauth_cb": FUNCTION})["oauth_cb"] == FUNCTION
    with pytest.raises(SettingsError, match="sets error_cb, but functions cannot be passed"):
        connection(monkeypatch, OIDC | {"error_cb": FUNCTION})


@pytest.mark.usefixtures("older_provider")
def test_older_providers_need_the_library_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(SettingsError, match="aws-msk-iam"):
        connection(monkeypatch, MSK)


def test_a_connection_to_msk_needs_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = ModuleType("aws_msk_iam_sasl_signer")
    library.MSKAuthTokenProvider = object
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", library)
    assert connection(monkeypatch, MSK) == MSK


def test_a_connection_to_msk_needs_the_library_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(SettingsError) as refused:
        connection(monkeypatch, MSK)
    assert "sluice-streams[msk]" in refused.value.next_step
