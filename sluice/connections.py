"""Kafka and Spark as Airflow's connections name them."""

from __future__ import annotations

from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from sluice.errors import SettingsError
from sluice.settings import settings

KAFKA = "kafka_default"
SPARK = "spark_default"


class KafkaConfigHook(KafkaBaseHook):
    """The provider's hook, returning the configuration itself, for clients that the provider does not know."""

    def _get_client(self, config: dict[str, Any]) -> dict[str, Any]:
        return config


def kafka_config(connection: str = KAFKA) -> dict[str, str]:
    """The librdkafka settings of a Kafka connection, as text.

    Raises SettingsError if there is no such connection or Spark could not use it.
    """
    try:
        hook = KafkaConfigHook(kafka_config_id=connection)  # type: ignore[no-untyped-call]
        config: dict[str, Any] = hook.get_conn
    except AirflowNotFoundException:
        raise SettingsError(
            f"There is no connection {connection!r}.",
            next_step='Add one of type Kafka whose extra is {"bootstrap.servers": "HOST:PORT"}.',
        ) from None
    except ValueError as error:
        raise SettingsError(f"Connection {connection!r} cannot be used: {error}") from None
    if calls := [name for name, value in config.items() if callable(value)]:
        raise SettingsError(
            f"Connection {connection!r} sets {', '.join(calls)}: functions cannot be passed to Spark.",
            next_step="Use a log-in that is text, such as SASL/SCRAM or a certificate.",
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
    """The Spark master of a connection; SettingsError if there is no such connection.

    The provider's hook would use YARN instead, and only log it.
    """
    try:
        spark = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        raise SettingsError(
            f"There is no connection {connection!r} with a Spark master.",
            next_step="Add one of type Spark whose host is the master, for example local[2] or spark://HOST:7077.",
        ) from None
    if spark.extra_dejson.get("deploy-mode") == "cluster":
        raise SettingsError(
            f"Connection {connection!r} asks for deploy mode cluster; the driver must run where Airflow's task runs.",
            next_step="Set its deploy-mode to client.",
        )
    return spark.host or ""
