"""What is configured from outside: the environment, read once, every name with its default and a sentence.

| variable | default | what it says |
| --- | --- | --- |
| SLUICE_HOME | ./.sluice | folder of everything Sluice keeps on this machine |
| SLUICE_PIPELINES | ./spark_jobs | folder of the pipelines' files |
| SLUICE_LEDGER | sqlite:///HOME/ledger.sqlite | SQLAlchemy URL of the ledger |
| SLUICE_SHARDS | sqlite:///HOME/shards | where shards are made: a folder of SQLite files, or a PostgreSQL URL |
| SLUICE_CHECKPOINTS | HOME/checkpoints | Spark's checkpoints and the tasks' files; shared by all executors |
| SLUICE_JARS | HOME/jars/spark | folder of the jars of Spark's Kafka connector |
| SLUICE_KAFKA | {"bootstrap.servers": "127.0.0.1:9092"} | JSON of librdkafka settings for reading and writing Kafka |
| SLUICE_SPARK_CONF | {} | JSON of further Spark settings |
| SLUICE_MAX_RECORDS | 2000000 | records of the streams in one batch, at most; a longer backlog takes several |
| SLUICE_DELIVERY | exactly_once | of outputs that say nothing else; or at_least_once |
| SLUICE_RUN | | the run that a driver works for; Airflow's operator sets it |
| SLUICE_SERVER_TOKEN | none | what state servers and those who ask them show each other; at least 16 characters |
| SLUICE_SERVER_TOKEN_FILE | none | a file that holds it instead |
| SLUICE_SERVER_CA | the system's | certificates that state servers' own are checked with |
| SLUICE_URL | http://127.0.0.1:8080 | address of the Airflow, or state server, that sluice query asks |
| SLUICE_TOKEN | none | token that sluice query shows there |
| SLUICE_USER | none | or: user of Airflow that it logs in as |
| SLUICE_PASSWORD | none | the user's password |
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from sluice.errors import SettingsError

_TOKEN_LENGTH = 16
_SECRET = re.compile(r"password|secret|token|jaas|\.pem$")


@dataclass(frozen=True)
class Settings:
    """One reading of the environment; see the module's table."""

    home: Path
    pipelines: Path
    ledger: str = field(repr=False)
    shards: str = field(repr=False)
    checkpoints: str
    jars: Path
    kafka: dict[str, str] = field(repr=False)
    spark_conf: dict[str, str] = field(repr=False)
    max_records: int
    delivery: str
    run: str
    server_token: str = field(default="", repr=False)
    server_token_file: Path | None = None
    server_ca: Path | None = None
    url: str = "http://127.0.0.1:8080"
    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        """Read `environ`; raises SettingsError that names the variable and what is wrong with it."""
        home = Path(environ.get("SLUICE_HOME") or ".sluice").absolute()
        return cls(
            home=home,
            pipelines=Path(environ.get("SLUICE_PIPELINES") or "spark_jobs").absolute(),
            ledger=environ.get("SLUICE_LEDGER") or f"sqlite:///{home / 'ledger.sqlite'}",
            shards=environ.get("SLUICE_SHARDS") or f"sqlite:///{home / 'shards'}",
            checkpoints=environ.get("SLUICE_CHECKPOINTS") or str(home / "checkpoints"),
            jars=Path(environ.get("SLUICE_JARS") or home / "jars" / "spark").absolute(),
            kafka=_strings(environ, "SLUICE_KAFKA", {"bootstrap.servers": "127.0.0.1:9092"}),
            spark_conf=_strings(environ, "SLUICE_SPARK_CONF", {}),
            max_records=_positive(environ, "SLUICE_MAX_RECORDS", 2_000_000),
            delivery=_one_of(environ, "SLUICE_DELIVERY", "exactly_once", "at_least_once"),
            run=environ.get("SLUICE_RUN", ""),
            server_token=_token(environ),
            server_token_file=_path(environ, "SLUICE_SERVER_TOKEN_FILE"),
            server_ca=_path(environ, "SLUICE_SERVER_CA"),
            url=environ.get("SLUICE_URL") or "http://127.0.0.1:8080",
            token=environ.get("SLUICE_TOKEN") or "",
            user=environ.get("SLUICE_USER") or "",
            password=environ.get("SLUICE_PASSWORD") or "",
        )

    @property
    def secrets(self) -> list[str]:
        """Values that no message may repeat."""
        kafka = [value for name, value in self.kafka.items() if _SECRET.search(name)]
        urls = [urlsplit(url).password or "" for url in (self.ledger, self.shards)]
        found = [*kafka, *urls, *map(unquote, urls), self.server_token, self.token, self.password]
        return sorted({one for one in found if one}, key=len, reverse=True)


def _token(environ: Mapping[str, str]) -> str:
    token, file = environ.get("SLUICE_SERVER_TOKEN", ""), _path(environ, "SLUICE_SERVER_TOKEN_FILE")
    if file and not token:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise SettingsError("The file that SLUICE_SERVER_TOKEN_FILE names cannot be read.") from None
    if token and not (len(token) >= _TOKEN_LENGTH and token.isascii() and token.isprintable()):
        raise SettingsError(f"SLUICE_SERVER_TOKEN is not {_TOKEN_LENGTH} or more printable ASCII characters.")
    return token


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]).absolute() if environ.get(name) else None


def _positive(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise SettingsError(f"{name} is {text!r}.", next_step="Write a whole number above 0.")
    return int(text)


def _one_of(environ: Mapping[str, str], name: str, default: str, *others: str) -> str:
    text = environ.get(name) or default
    if text not in (default, *others):
        raise SettingsError(f"{name} is {text!r}.", next_step=f"Write {' or '.join((default, *others))}.")
    return text


def _strings(environ: Mapping[str, str], name: str, default: dict[str, str]) -> dict[str, str]:
    text = environ.get(name)
    if not text:
        return default
    try:
        return msgspec.json.decode(text, type=dict[str, str], strict=False)
    except msgspec.DecodeError:
        # The text itself may hold a password: the message names the variable only.
        raise SettingsError(f"{name} is not a JSON object of strings.") from None


@cache
def settings() -> Settings:
    """The settings of this process."""
    return Settings.read(os.environ)
