"""Settings, read once from environment variables.

| variable | default | meaning |
| --- | --- | --- |
| SLUICE_HOME | ./.sluice | folder for what Sluice stores on this machine; HOME in this table |
| SLUICE_PIPELINES | ./spark_jobs | folder of the pipelines' files |
| SLUICE_LEDGER | sqlite:///HOME/ledger.sqlite | SQLAlchemy URL of the ledger |
| SLUICE_SHARDS | sqlite:///HOME/shards | URL for new shards: a folder, or a PostgreSQL database |
| SLUICE_JARS | HOME/jars | folder for jars of Delta Lake and the broker, and for class archives |
| SLUICE_KAFKA | {"bootstrap.servers": "127.0.0.1:9092"} | librdkafka settings, as JSON |
| SLUICE_SPARK_CONF | {} | additional Spark settings, as JSON |
| SLUICE_MAX_RECORDS | from SLUICE_MEMORY | most stream records of a batch |
| SLUICE_LINGER_MS | the pipeline's linger | how many ms a run waits for new records |
| SLUICE_RUN | | name of the run in audits and notes; in Airflow, the task sets it |
| SLUICE_COMMIT_OFFSETS | true | whether runs commit offsets to the group sluice-PIPELINE |
| SLUICE_MEMORY | 1500m | memory of a run, which determines the sizes of its batches and the heap |
| SLUICE_LIBRARIES | | folder of a pipeline's own libraries; Sluice sets it for a run |
| SLUICE_WARM | off | whether runs use a warm driver: off, use, or start |
| SLUICE_POOL | default_pool | Airflow pool of the pipelines' tasks |
| SLUICE_SERVER_TOKEN | none | token that callers send to state servers; at least 16 characters |
| SLUICE_SERVER_TOKEN_FILE | none | file with this token, in place of SLUICE_SERVER_TOKEN |
| SLUICE_SERVER_TOKEN_ALSO | none | second token that state servers accept, to replace the first |
| SLUICE_SERVER_CA | the system's certificates | file of CA certificates to verify state servers |
| SLUICE_URL | http://127.0.0.1:8080 | address of Airflow or of a state server, for sluice query |
| SLUICE_TOKEN | none | token that sluice query sends |
| SLUICE_USER | none | Airflow user that sluice query logs in as, if it sends no token |
| SLUICE_PASSWORD | none | password of the user in SLUICE_USER |
| SLUICE_AUDIT_QUERIES | false | whether API servers log who queried which store |
| SLUICE_REGISTRY | {} | settings of the schema registry's client, as JSON: url and others |
| SLUICE_KAFKA_NAME | none | librdkafka settings of connection NAME, in capital letters, as JSON |
| SLUICE_CONNECTION_NAME | none | URL of the database of connection NAME, in capital letters |
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from urllib.parse import quote

import msgspec

from sluice.errors import SettingsError
from sluice.support import masking

_TOKEN_LENGTH = 16
_MOST_DIGITS = 12
LEAST_MEMORY_MB, MEMORY_MB = 1_200, 1_500
"""The smallest memory that a run may get, and the default."""
OFF, USE_WARM, START_WARM = "off", "use", "start"
"""The values of SLUICE_WARM: use no warm driver, use one if it runs, or start one if none does."""
_CONNECTION = "SLUICE_CONNECTION_"
"""Prefix of the variables with the URLs of databases."""
_KAFKA = "SLUICE_KAFKA_"
"""Prefix of the variables with the settings of further Kafka clusters."""


@dataclass(frozen=True)
class Settings:
    """The values of the environment variables in the module's table."""

    home: Path
    pipelines: Path
    ledger: str = field(repr=False)
    shards: str = field(repr=False)
    jars: Path
    kafka: dict[str, str] = field(repr=False)
    spark_conf: dict[str, str] = field(repr=False)
    max_records: int | None
    """None if the size of batches follows from `memory` (see `engine/run/batch_size.py`)."""
    linger_ms: int | None
    run: str
    commit_offsets: bool = True
    """Whether runs commit offsets to a consumer group (`engine/publish/consumer_group.py`)."""
    memory: int = MEMORY_MB
    """The memory that a run's processes may need together, in millions of bytes."""
    libraries: Path | None = None
    """The folder of the pipeline's own libraries; None if it has none."""
    warm: str = OFF
    """Whether runs use a warm driver: one of OFF, USE_WARM and START_WARM."""
    pool: str = "default_pool"
    server_token: str = field(default="", repr=False)
    server_token_file: Path | None = None
    server_token_also: str = field(default="", repr=False)
    server_ca: Path | None = None
    url: str = field(default="http://127.0.0.1:8080", repr=False)
    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    audit_queries: bool = False
    """Whether API servers and state servers log who queried which store."""
    registry: dict[str, str] = field(default_factory=dict, repr=False)
    """The settings of the schema registry's client; empty if there is no registry."""
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variable → the URL of a database whose tables pipelines write, or in which they
    look up records."""

    kafka_connections: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """Environment variable → the librdkafka settings of a cluster that some pipelines use."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """Parse `environ`. Raises SettingsError with the variable's name and the problem."""
        _refuse_delivery(environ)
        home = Path(environ.get("SLUICE_HOME") or ".sluice").absolute()
        connections: dict[str, str] = {}
        for name, url in environ.items():
            if name.startswith(_CONNECTION) and url:
                connections[name] = url
        return cls(
            home=home,
            pipelines=Path(environ.get("SLUICE_PIPELINES") or "spark_jobs").absolute(),
            ledger=environ.get("SLUICE_LEDGER") or sqlite_url(home / "ledger.sqlite"),
            shards=environ.get("SLUICE_SHARDS") or sqlite_url(home / "shards"),
            jars=Path(environ.get("SLUICE_JARS") or home / "jars").absolute(),
            kafka=_strings(environ, "SLUICE_KAFKA", {"bootstrap.servers": "127.0.0.1:9092"}),
            spark_conf=_strings(environ, "SLUICE_SPARK_CONF", {}),
            max_records=_positive(environ, "SLUICE_MAX_RECORDS"),
            linger_ms=_whole(environ, "SLUICE_LINGER_MS"),
            run=environ.get("SLUICE_RUN", ""),
            commit_offsets=_boolean(environ, "SLUICE_COMMIT_OFFSETS", default=True),
            memory=megabytes("SLUICE_MEMORY", environ.get("SLUICE_MEMORY") or f"{MEMORY_MB}m"),
            libraries=_path(environ, "SLUICE_LIBRARIES"),
            warm=_one_of(environ, "SLUICE_WARM", (OFF, USE_WARM, START_WARM)),
            pool=environ.get("SLUICE_POOL") or "default_pool",
            server_token=_token(environ),
            server_token_file=_path(environ, "SLUICE_SERVER_TOKEN_FILE"),
            server_token_also=_valid_token(
                "SLUICE_SERVER_TOKEN_ALSO", environ.get("SLUICE_SERVER_TOKEN_ALSO", "")
            ),
            server_ca=_path(environ, "SLUICE_SERVER_CA"),
            url=environ.get("SLUICE_URL") or "http://127.0.0.1:8080",
            token=environ.get("SLUICE_TOKEN") or "",
            user=environ.get("SLUICE_USER") or "",
            password=environ.get("SLUICE_PASSWORD") or "",
            audit_queries=_boolean(environ, "SLUICE_AUDIT_QUERIES", default=False),
            registry=_strings(environ, "SLUICE_REGISTRY", {}),
            connections=connections,
            kafka_connections=_kafka_connections(environ),
        )

    def kafka_of(self, connection: str) -> dict[str, str]:
        """Return the librdkafka settings of a connection; SLUICE_KAFKA if `connection` is empty.

        Raise SettingsError if the environment has no such connection.
        """
        if not connection:
            return self.kafka
        variable = kafka_variable(connection)
        if variable not in self.kafka_connections:
            raise SettingsError(
                f"There is no Kafka connection {connection!r}.",
                next_step=f"""Set {variable}='{{"bootstrap.servers": "HOST:PORT"}}'.""",
            )
        return dict(self.kafka_connections[variable])

    @cached_property
    def secrets(self) -> tuple[str, ...]:
        """Passwords, keys and tokens, which must never appear in a log or an error."""
        secrets = {self.server_token, self.server_token_also, self.token, self.password}
        for mapping in (self.kafka, self.spark_conf, self.connections, self.registry):
            secrets.update(masking.secrets_of_settings(mapping))
        for kafka in self.kafka_connections.values():
            secrets.update(masking.secrets_of_settings(kafka))
        for url in (self.ledger, self.shards, self.url):
            secrets.update(masking.secrets_of_url(url))
        return tuple(sorted(secrets - {""}, key=len, reverse=True))


def kafka_variable(connection: str) -> str:
    """Return the environment variable with the librdkafka settings of a connection."""
    return _KAFKA + re.sub("[^A-Z0-9]", "_", connection.upper())


def _kafka_connections(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    connections: dict[str, dict[str, str]] = {}
    for name in environ:
        if name.startswith(_KAFKA) and environ[name]:
            connections[name] = _strings(environ, name, {})
    return connections


def sqlite_url(path: Path) -> str:
    """Return the URL of a file or folder of SQLite, with the path's special characters escaped."""
    return f"sqlite:///{quote(str(path))}"


def _refuse_delivery(environ: Mapping[str, str]) -> None:
    """Raise SettingsError if SLUICE_DELIVERY, a former setting, asks for at-least-once."""
    delivery = environ.get("SLUICE_DELIVERY") or "exactly_once"
    if delivery != "exactly_once":
        raise SettingsError(
            f"SLUICE_DELIVERY is {delivery[:40]!r}, but every output is written exactly once.",
            next_step="Remove SLUICE_DELIVERY from the environment.",
        )


def _token(environ: Mapping[str, str]) -> str:
    name, token = "SLUICE_SERVER_TOKEN", environ.get("SLUICE_SERVER_TOKEN", "")
    file = _path(environ, "SLUICE_SERVER_TOKEN_FILE")
    if file and not token:
        name = "SLUICE_SERVER_TOKEN_FILE"
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise SettingsError(
                f"The file {file} in {name} cannot be read.",
                next_step="Write the token into a text file that this user may read.",
            ) from None
    return _valid_token(name, token)


def _valid_token(name: str, token: str) -> str:
    # The token is sent in a header, whose text must be ASCII.
    is_ascii = token.isascii() and token.isprintable()
    if token and (len(token) < _TOKEN_LENGTH or not is_ascii):
        raise SettingsError(
            f"The token in {name} must have at least {_TOKEN_LENGTH} characters, all of them "
            "printable ASCII.",
            next_step="Make a token, for example with: openssl rand -hex 16.",
        )
    return token


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    path = environ.get(name)
    if not path:
        return None
    return Path(path).absolute()


def _positive(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not (_is_whole(text) and int(text) > 0):
        raise SettingsError(
            f"{name} is {text[:40]!r}.",
            next_step="Set it to a whole number from 1 to 999,999,999,999.",
        )
    return int(text)


def megabytes(name: str, text: str) -> int:
    """Return an amount of memory, such as `4g` or `1500m`, in millions of bytes.

    Raise SettingsError, with the name of the setting, for anything else and for too little.
    """
    number, unit = text[:-1], text[-1:].lower()
    megabytes = 0
    if _is_whole(number):
        megabytes = int(number) * {"m": 1, "g": 1_000}.get(unit, 0)
    if megabytes < LEAST_MEMORY_MB:
        raise SettingsError(
            f"{name} is {text[:40]!r}.",
            next_step=f"Set it to at least {LEAST_MEMORY_MB}m, such as {MEMORY_MB}m or 4g.",
        )
    return megabytes


def _boolean(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name)
    if not text:
        return default
    if text.lower() not in ("true", "false"):
        raise SettingsError(f"{name} is {text[:40]!r}.", next_step="Set it to true or false.")
    return text.lower() == "true"


def _one_of(environ: Mapping[str, str], name: str, values: Sequence[str]) -> str:
    """Return the variable's value, which must be one of `values`. The first is the default."""
    text = environ.get(name) or values[0]
    if text not in values:
        raise SettingsError(
            f"{name} is {text[:40]!r}.",
            next_step=f"Set it to {', '.join(values[:-1])} or {values[-1]}.",
        )
    return text


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not _is_whole(text):
        raise SettingsError(
            f"{name} is {text[:40]!r}.",
            next_step="Set it to a whole number up to 999,999,999,999.",
        )
    return int(text)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _strings(environ: Mapping[str, str], name: str, default: dict[str, str]) -> dict[str, str]:
    text = environ.get(name)
    if not text:
        return default
    try:
        return msgspec.json.decode(text, type=dict[str, str], strict=False)
    except msgspec.DecodeError:
        # The text may contain a password, so the message contains only the variable's name.
        raise SettingsError(
            f"{name} must be a JSON object of strings.",
            next_step=f"""Write for example {name}='{{"NAME": "VALUE"}}'.""",
        ) from None


@cache
def settings() -> Settings:
    """Return the settings of this process."""
    return Settings.read(os.environ)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask these secrets, and those in this process's settings, in the text."""
    try:
        own_secrets = settings().secrets
    except SettingsError:
        own_secrets = ()
    return masking.masked(text, (*own_secrets, *secrets))
