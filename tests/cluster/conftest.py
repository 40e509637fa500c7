"""Pipelines on a standalone cluster: ledger and shards in PostgreSQL, and two state servers that answer queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.client import Client
from sluice.examples.orders.expected_totals import Totals
from sluice.kafka.topics import read_topic
from tests.cluster.standalone import SparkCluster, python_of_executors, spark_cluster
from tests.faults.kills import WORKERS
from tests.faults.orders import NOW_MS
from tests.faults.world import World, world
from tests.servers.hosts import TOKEN
from tests.servers.processes import ServerProcess
from tests.servers.processes import environment as host
from tests.support.postgres import new_database


@dataclass
class Deployment:
    """A pipeline and the processes that run it and answer its queries."""

    world: World
    cluster: SparkCluster
    servers: list[ServerProcess]
    """Each has half of the workers."""

    def entries(self, store: str, server: int = 0) -> dict[str, object]:
        """The keys and values of a store, asked from one of the servers."""
        with Client(f"http://127.0.0.1:{self.servers[server].port}", token=TOKEN) as client:
            return {entry.key: entry.value for entry in client.range(store)}

    def expected(self, store: str) -> dict[str, object]:
        """The keys and values of `general_orders_count` or `words_latest`, computed from the topic."""
        if self.world.name == "orders":
            totals = Totals()
            for message in read_topic(self.world.config, "orders"):
                totals.add(message.value(), message.partition() or 0, NOW_MS)
            return dict(totals.stores()[store])
        latest: dict[str, object] = {}
        for message in sorted(
            read_topic(self.world.config, "words"), key=lambda message: message.timestamp()[1]
        ):
            key, value = (message.key() or b"").decode(), message.value()
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = value.decode()
        return latest


Deploy = Callable[[str], Deployment]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_of_executors(tmp_path_factory.mktemp("python"))


@pytest.fixture
def deploy(cluster: SparkCluster, python: Path, postgres: str) -> Iterator[Deploy]:
    """Makes a deployment of a pipeline: `deploy("orders")`."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(
            _deployment(name, cluster, python, new_database(postgres))
        )


@contextmanager
def _deployment(
    name: str, cluster: SparkCluster, python: Path, database: str
) -> Iterator[Deployment]:
    environment = {
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SLUICE_SPARK_CONF": json.dumps(
            {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        ),
        "SLUICE_LEDGER": database,
        "SLUICE_SHARDS": database,
        "SLUICE_SERVER_TOKEN": TOKEN,
    }
    with world(name, environment, cluster.master) as opened, ExitStack() as stack:
        half = WORKERS[name] // 2
        shares = (range(half), range(half, WORKERS[name]))
        variables = host(opened.home, opened.home, database) | {
            "SLUICE_SHARDS": database, "SLUICE_PIPELINES": str(opened.settings.pipelines),
        }  # fmt: skip
        servers = [
            ServerProcess(
                variables, "--rest", "--pipeline", name, "--workers", ",".join(map(str, share))
            )
            for share in shares
        ]
        for server in servers:
            server.start().wait(120)
            stack.callback(server.kill)
        yield Deployment(opened, cluster, servers)
