"""Drivers on hosts that share nothing but the databases and the broker. Run by `make test-namespaces`, as root.

Each host is a network namespace and a mount namespace of its own, with empty folders in place of
/tmp, /dev/shm and the home. Not part of `make test`, because not every machine allows namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from tests.faults.truth import PIPELINES, Watcher, compare
from tests.faults.world import ROOT, Driver, World, wait_until
from tests.servers.namespaces import Namespace
from tests.servers.processes import SLUICE
from tests.support.ports import free_port
from tests.support.postgres import new_database, postgres_server

pytestmark = pytest.mark.timeout(1800)

SHARED = "10.231.200.1"
"""The address at which every host reaches the broker and the database server."""
HOME = "/tmp/home"
EMPTY = f"mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm && mkdir {HOME} && cd {HOME} && exec "
BACKLOG = {"orders": 6_000, "words": 2_000}
MAX_RECORDS = {"orders": "1000", "words": "300"}


class Hosts(World):
    """A pipeline whose drivers run on hosts of their own."""

    def has_begun_after(self, batch: int) -> bool:
        """Whether a driver has begun a batch that is neither published nor among those up to this one."""
        return self.begun() > max(batch, self.published())

    def start_on(self, host: Namespace) -> Driver:
        """Start a driver on a host without files."""
        kafka = {"bootstrap.servers": self.environment["BROKER"]}
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")
        } | {
            "SLUICE_HOME": HOME,
            "SLUICE_JARS": str(settings().jars),
            "SLUICE_PIPELINES": str(ROOT / "spark_jobs"),
            "SLUICE_LEDGER": self.environment["SLUICE_LEDGER"],
            "SLUICE_SHARDS": self.environment["SLUICE_SHARDS"],
            "SLUICE_KAFKA": json.dumps(kafka),
            "SLUICE_MAX_RECORDS": MAX_RECORDS[self.name],
        }
        log = self.folder / f"driver-{len(self.drivers)}.log"
        command = [
            *host.inside,
            "unshare",
            "--mount",
            "sh",
            "-c",
            f"{EMPTY}{SLUICE} run {self.name}",
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd="/",
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=variables,
            )
        driver = Driver(process, log)
        self.drivers.append(driver)
        return driver


@pytest.fixture(params=["orders", "words"])
def hosts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Hosts, list[Namespace]]]:
    with ExitStack() as stack:
        subprocess.run(["ip", "addr", "add", f"{SHARED}/32", "dev", "lo"], check=True)
        stack.callback(
            subprocess.run, ["ip", "addr", "del", f"{SHARED}/32", "dev", "lo"], check=True
        )
        namespaces = [stack.enter_context(Namespace(number)) for number in (11, 12, 13)]
        for host in namespaces:
            subprocess.run(
                ["ip", "-n", host.name, "route", "add", "default", "via", host.outer], check=True
            )
        port = free_port()
        listeners = {
            "listeners": f"HOSTS://{SHARED}:{port}",
            "advertised.listeners": f"HOSTS://{SHARED}:{port}",
            "listener.security.protocol.map": "HOSTS:PLAINTEXT",
        }
        kafka = stack.enter_context(
            EmbeddedKafka(tmp_path / "kafka", free_port(), config=listeners)
        )
        database = new_database(
            stack.enter_context(postgres_server(tmp_path / "postgres", host=SHARED))
        )
        environment = {
            "SLUICE_LEDGER": database,
            "SLUICE_SHARDS": database,
            "BROKER": f"{SHARED}:{port}",
        }
        world = Hosts(tmp_path, kafka, request.param, environment)
        stack.callback(world.close)
        yield world, namespaces


def test_a_batch_that_was_killed_on_one_host_is_finished_on_another(
    hosts: tuple[Hosts, list[Namespace]],
) -> None:
    world, (first, second, third) = hosts
    watcher = Watcher(world)
    PIPELINES[world.name].feed(world, BACKLOG[world.name], 0)

    driver = world.start_on(first)
    world.await_batch(driver, 1)
    driver.kill("all")
    for host in (second, third, first):
        published = world.published()
        driver = world.start_on(host)
        assert wait_until(partial(world.has_begun_after, published), 300), driver.output[-3000:]
        driver.kill("all")
        watcher.check()
    assert world.published() >= 1

    PIPELINES[world.name].feed(world, BACKLOG[world.name] // 4, BACKLOG[world.name])
    last = world.start_on(second)
    assert last.wait() == 0, last.output[-3000:]
    watcher.check()
    compare(world)
    assert not world.home.exists(), "the test itself has no files of the pipeline"
