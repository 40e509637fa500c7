"""Reads Kafka settings, the Spark master and the URLs of databases from Airflow's connections."""

from __future__ import annotations

import pydoc
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from airflow.configuration import conf
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.sdk import BaseHook

from sluice.airflow_releases import (
    AirflowNotFoundException,
    AirflowOptionalProviderFeatureException,
)
from sluice.errors import SettingsError, sentence
from sluice.kafka.msk_iam import provider
from sluice.kafka.token_functions import FUNCTION, token_settings, uses_msk_iam
from sluice.settings import settings
from sluice.spark_submit import deploy_mode_error
from sluice.values.sink_tables import connection_variable

KAFKA = "kafka_default"
SPARK = "spark_default"
REGISTRY = "schema_registry_default"
_CALLBACKS = ("error_cb", "throttle_cb", "stats_cb", "log_cb", "on_commit")
_SECTION, _ALLOWLIST = "apache_kafka", "callback_allowlist"
"""Airflow's setting that lists the functions which a connection may name."""
_LIBPQ = ("ssl", "options", "target_session_attrs", "keepalives", "channel_binding", "gssencmode")
"""An extra of a Postgres connection is a libpq parameter if its name has one of these prefixes."""


class KafkaConfigHook(KafkaBaseHook):
    """A Kafka hook that returns the connection's configuration instead of a client."""

    def _get_client(self, config: dict[str, Any]) -> dict[str, Any]:
        return config


def kafka_config(connection: str = KAFKA) -> dict[str, str]:
    """Return the librdkafka settings of a Kafka connection, as text.

    Raises SettingsError if there is no such connection, or if Spark cannot use it.
    """
    try:
        hook = KafkaConfigHook(kafka_config_id=connection)  # type: ignore[no-untyped-call]
        config: dict[str, Any] = hook.get_conn
    except AirflowNotFoundException:
        raise SettingsError(
            f"There is no connection {connection!r}.",
            next_step=(
                'Add a connection of type Kafka with the extra {"bootstrap.servers": "HOST:PORT"}.'
            ),
        ) from None
    except AirflowOptionalProviderFeatureException as error:
        raise SettingsError(
            f"Connection {connection!r} cannot be used: {sentence(error)}",
            next_step="Install the package that makes the tokens. For AWS: "
            "pip install 'sluice-streams[msk]'.",
        ) from None
    except ValueError as error:
        raise SettingsError(
            f"Connection {connection!r} cannot be used: {sentence(error)}",
            next_step=(
                "Correct the connection's extra in Airflow: a JSON object with librdkafka settings."
            ),
        ) from None
    if callable(config.get(FUNCTION)):
        config = _with_function_named(config)
    else:
        _require_allowed(connection, config)
    functions = [name for name, value in config.items() if callable(value) or name in _CALLBACKS]
    if functions:
        raise SettingsError(
            f"Connection {connection!r} sets {', '.join(functions)}, but functions cannot be "
            "passed to Spark.",
            next_step="Authenticate with text settings, such as OIDC, SASL/SCRAM or a certificate. "
            f"For tokens, name a function of a module in {FUNCTION}, and list it in Airflow's "
            f"[{_SECTION}] {_ALLOWLIST}.",
        )
    texts = {name: _text(value) for name, value in config.items()}
    if uses_msk_iam(texts):
        # Fail here if AWS's library is missing; otherwise, each client would fail later.
        provider()
    return texts


def _require_allowed(connection: str, config: Mapping[str, Any]) -> None:
    """Raise SettingsError unless Airflow's settings allow the function that provides tokens.

    Older Kafka providers, such as 1.12, do not know Airflow's list of allowed functions, and return
    the name unchecked. Without
    this check, whoever may edit connections could let a run call any function.
    """
    name = config.get(FUNCTION)
    allowed = conf.get(_SECTION, _ALLOWLIST, fallback="") or ""
    if name is not None and name not in map(str.strip, allowed.split(",")):
        raise SettingsError(
            f"Connection {connection!r} sets {FUNCTION} to the function {name!r}, but Airflow's "
            f"[{_SECTION}] {_ALLOWLIST} does not list this function.",
            next_step=f"If the function may be called, add it to {_ALLOWLIST}.",
        )


def _with_function_named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the token function's name in place of the function.

    Airflow has imported a function that its administrator allows, or has added its own function. If
    Sluice has its own function for these settings, leave the name out.
    """
    others = {name: value for name, value in config.items() if name != FUNCTION}
    function = config[FUNCTION]
    if isinstance(function, partial) and token_settings(others):
        return others
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if pydoc.locate(name) is function:
        return {**others, FUNCTION: name}
    return dict(config)


def kafka_or_settings(connection: str = "") -> dict[str, str]:
    """Return the settings of a Kafka connection of Airflow, or else those in the environment.

    If `connection` is empty, read the connection `kafka_default`, or else SLUICE_KAFKA. Raises
    SettingsError if there is a connection, but it cannot be used.
    """
    try:
        BaseHook.get_connection(connection or KAFKA)
    except AirflowNotFoundException:
        return settings().kafka_of(connection)
    return kafka_config(connection or KAFKA)


def registry_or_settings(connection: str = REGISTRY) -> dict[str, str]:
    """Return the settings of the schema registry's client, from a connection or SLUICE_REGISTRY.

    The connection has the type HTTP. Its extra field has more settings of the client. Airflow's
    program that loads DAGs never calls this, and neither does a trigger.
    """
    try:
        registry = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        return settings().registry
    extras = {name: _text(value) for name, value in registry.extra_dejson.items()}
    host = registry.host or ""
    if "://" not in host:
        host = f"{registry.schema or 'http'}://{host}"
    if registry.port:
        host = f"{host}:{registry.port}"
    client = {"url": host}
    if registry.login:
        client["basic.auth.user.info"] = f"{registry.login}:{registry.password or ''}"
    return client | extras


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def spark_master(connection: str = SPARK) -> str:
    """Return the Spark master of a connection. Raises SettingsError if there is no such connection.

    The hook of Airflow's Spark provider would only log that the connection is missing, and use
    YARN.
    """
    try:
        spark = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        raise SettingsError(
            f"There is no connection {connection!r} with a Spark master.",
            next_step=(
                "Add a connection of type Spark with the master as its host: local[2] or "
                "spark://HOST:7077."
            ),
        ) from None
    if spark.extra_dejson.get("deploy-mode") == "cluster":
        raise deploy_mode_error(f"Connection {connection!r} sets deploy-mode to cluster")
    return spark.host or ""


def database_url(connection: str) -> str:
    """Return the URL of a Postgres connection's database; empty if there is no connection.

    Raises SettingsError if the connection has another type.
    """
    try:
        database = BaseHook.get_connection(connection)
    except AirflowNotFoundException:
        return ""
    if database.conn_type != "postgres":
        raise SettingsError(
            f"Connection {connection!r} is of type {database.conn_type}, not Postgres.",
            next_step=(
                "Change the connection's type to Postgres: a pipeline uses a table of this "
                "database. For look-ups in another kind of database, delete the connection and "
                f"set the environment variable {connection_variable(connection)} to the "
                "database's URL."
            ),
        )
    user = quote(database.login or "", safe="")
    password = quote(database.password or "", safe="")
    account = ""
    if password:
        account = f"{user}:{password}@"
    elif user:
        account = f"{user}@"
    server = database.host or ""
    if ":" in server:
        server = f"[{server}]"
    if database.port:
        server += f":{database.port}"
    url = f"postgresql://{account}{server}/{quote(database.schema or '', safe='')}"
    extras: dict[str, str] = {}
    for name, value in database.extra_dejson.items():
        if name.startswith(_LIBPQ):
            extras[name] = str(value)
    if extras:
        url += f"?{urlencode(extras, quote_via=quote)}"
    return url
