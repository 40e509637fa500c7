"""Checks the packages and connections of executors, for `sluice check --master`.

The checks run in a task on an executor. The module imports only Python's own modules, so it also
runs where packages are missing.
"""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module, metadata

CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    where: str
    """The host, or `driver`."""
    check: str
    detail: str
    error: str = ""
    """What is wrong; empty if the check has passed."""
    differs: bool = False
    """Whether the finding differs from the finding on the driver's host, but is not an error."""

    @property
    def result(self) -> str:
        if self.error:
            return "failed"
        return "differs" if self.differs else "ok"


@dataclass(frozen=True)
class Report:
    """The findings of one task, and the time on its host's clock, epoch s."""

    host: str
    findings: tuple[Finding, ...]
    time: float


@dataclass(frozen=True)
class Probe:
    """The checks that a task makes."""

    packages: Mapping[str, str]
    """Package that tasks import → its version on the driver's host."""
    kafka: Mapping[str, str] = field(repr=False)
    databases: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Address without a password → the URL of a database with shards."""
    servers: Sequence[tuple[str, int]] = ()
    """Host and port of each state server that writes shards."""

    def report(self) -> Report:
        """Make all checks.

        If one check raises an error, the others are made nevertheless.
        """
        host = socket.gethostname()
        checks: dict[str, Callable[[], str]] = {
            "Python": lambda: platform.python_version(),
            "Sluice": _import_tasks,
            "Kafka": self._reach_brokers,
        }
        if self.databases:
            checks["shards"] = self._open_databases
        if self.servers:
            checks["state servers"] = self._reach_servers
        findings: list[Finding] = [self._packages(host)]
        for name, check in checks.items():
            try:
                findings.append(Finding(host, name, check()))
            except Exception as error:
                findings.append(Finding(host, name, "", _first_line(error)))
        return Report(host, tuple(findings), time.time())

    def _packages(self, host: str) -> Finding:
        missing: list[str] = []
        different: list[str] = []
        for name, version in self.packages.items():
            try:
                installed = metadata.version(name)
            except metadata.PackageNotFoundError:
                missing.append(f"{name} {version} is missing")
                continue
            if installed != version:
                different.append(f"{name} {installed}, the driver has {version}")
        # Driver and executors must have the same Spark.
        wrong = [*missing, *[text for text in different if text.startswith("pyspark ")]]
        if wrong:
            return Finding(host, "packages", "", "; ".join(wrong))
        if different:
            return Finding(host, "packages", "; ".join(different), differs=True)
        return Finding(host, "packages", f"{len(self.packages)} as on the driver's host")

    def _reach_brokers(self) -> str:
        from sluice.kafka.brokers import require_brokers, silent_admin

        require_brokers(self.kafka)
        # The first broker that answers returns the addresses under which clients reach the other
        # brokers.
        brokers = silent_admin(self.kafka).list_topics(timeout=CONNECT_SECONDS).brokers.values()
        addresses = [(str(broker.host), int(broker.port)) for broker in brokers]
        for address in addresses:
            _connect(address)
        return ", ".join([f"{host}:{port}" for host, port in addresses])

    def _open_databases(self) -> str:
        from sluice.state.database import database_errors, database_url, open_engine

        for url in self.databases.values():
            # A shard's URL also names its schema, but this check needs only the database.
            database = database_url(url).difference_update_query(["schema"])
            engine = open_engine(database)
            try:
                with database_errors("Opening the shards"), engine.connect():
                    pass
            finally:
                engine.dispose()
        return ", ".join(self.databases)

    def _reach_servers(self) -> str:
        for address in self.servers:
            _connect(address)
        return ", ".join([f"{host}:{port}" for host, port in self.servers])


def _import_tasks() -> str:
    """Import everything that tasks need."""
    import_module("sluice.engine.task_modules")
    return str(import_module("sluice").__version__)


def _connect(address: tuple[str, int]) -> None:
    try:
        with closing(socket.create_connection(address, CONNECT_SECONDS)):
            pass
    except OSError as error:
        raise ConnectionError(f"{address[0]}:{address[1]}: {error}") from None


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text or type(error).__name__
