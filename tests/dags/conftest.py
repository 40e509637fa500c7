"""Airflow in this process, with its own home and database, and a broker for tests that need one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from tests.support import airflow_home
from tests.support.airflow_database import provide_database
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
JARS = ROOT / ".sluice" / "jars"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate SLUICE_HOME with the repository's pipelines."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_PIPELINES", str(ROOT / "spark_jobs"))
    monkeypatch.setenv("SLUICE_JARS", str(JARS))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """A database for `dag.test()`."""
    provide_database(Path(airflow_home.HOME) / "airflow.db")


@pytest.fixture
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker of a test's own, because the test counts all records in the topics of the orders' pipeline."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), free_port()) as broker:
        yield broker


@dataclass(frozen=True)
class Connections:
    """Airflow's connections, as environment variables."""

    kafka: dict[str, str]


@pytest.fixture
def connections(own_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> Connections:
    """Connections to the broker and to a local Spark."""
    brokers = {"bootstrap.servers": own_kafka.bootstrap}
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": brokers})
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"})
    )
    return Connections(brokers)
