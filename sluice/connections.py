"""Reads the Kafka settings and the Spark master from Airflow's connections."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from sluice.errors import SettingsError
from sluice.settings import settings
from sluice.submission import deploy_mode_error

KAFKA = "kafka_default"
SPARK = "spark_default"


class KafkaConfigHook(KafkaBaseHook):
    """The provider's hook, changed to return the configuration, for clients that the provider does not support."""

    def _get_client(self, config: dict[str, Any]) -> dict[str, Any]:
        return config


def kafka_config(connection: str = KAFKA) -> dict[str, str]:
    """The librdkafka settings of a Kafka connection, as text.

    Raises SettingsError if there is no such connection, or if Spark cannot use it.
    """
    try:
        hook = KafkaConfigHook(kafka_config_id=connection)  # type: ignore[no-untyped-call]
        config: dict[str, Any] = hook.get_conn
    except AirflowNotFoundException:
        raise SettingsError(
            f"There is no connection {connection!r}.",
            next_step='Add a connection of type Kafka with the extra {"bootstrap.servers": "HOST:PORT"}.',
        ) from None
    except ValueError as error:
        raise SettingsError(f"Connection {connection!r} cannot be used: {error}") from None
    if calls := [name for name, value in config.items() if callable(value)]:
        raise SettingsError(
            f"Connection {connection!r} sets {', '.join(calls)}, but functions cannot be passed to Spark.",
            next_step="Authenticate with text settings, such as SASL/SCRAM or a certificate.",
        )
    return {name: _text(value) for name, value in config.items()}


def kafka_or_settings() -> dict[str, str]:
    """The settings of Airflow's Kafka connection, or those of SLUICE_KAFKA if there is no such connection."""
    try:
        return kafka_config()
    except SettingsError:
        return settings().kafka


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def spark_master(connection: str = SPARK) -> str:
    """The Spark master of a connection. Raises SettingsError if there is no such connection.

    Without the connection, the provider's hook would use YARN and only log it.
    """
    try:
        spark = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        raise SettingsError(
            f"There is no connection {connection!r} with a Spark master.",
            next_step="Add a connection of type Spark with the master as its host: local[2] or spark://HOST:7077.",
        ) from None
    if spark.extra_dejson.get("deploy-mode") == "cluster":
        raise deploy_mode_error(f"Connection {connection!r} sets deploy-mode to cluster")
    return spark.host or ""
