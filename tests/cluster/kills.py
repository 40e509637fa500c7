"""For `make test-cluster`: a worker with its executors, a driver and a state server are killed during a backlog.

These tests take minutes, so `make test` does not include them.
"""

from __future__ import annotations

import pytest

from sluice.client import Client
from sluice.errors import StateError
from sluice.values.key_owners import owner
from tests.cluster.conftest import Deploy
from tests.faults.kills import WORKERS
from tests.faults.truth import PIPELINES, Watcher, compare
from tests.servers.hosts import TOKEN

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

BACKLOG = {"orders": 8_000, "words": 3_000}
BATCH = {"orders": 400, "words": 150}
STORE = {"orders": "general_orders_count", "words": "words_latest"}


@pytest.mark.parametrize("name", ["orders", "words"])
def test_three_kills_do_not_change_the_results(deploy: Deploy, name: str) -> None:
    deployed = deploy(name)
    world, cluster, servers = deployed.world, deployed.cluster, deployed.servers
    watcher = Watcher(world)
    PIPELINES[name].feed(world, BACKLOG[name], 0)
    driver = world.start(SLUICE_MAX_RECORDS=str(BATCH[name]))

    world.await_batch(driver, 1)
    cluster.kill("worker-1")
    world.await_batch(driver, world.published() + 2)
    watcher.check()
    cluster.start_worker("worker-1")

    driver.kill("all")
    servers[1].kill()
    watcher.check()
    with Client(f"http://127.0.0.1:{servers[0].port}", token=TOKEN) as client:
        page = client.page(STORE[name], limit=10)
        assert page.entries
        for entry in page.entries:
            assert owner(entry.key, WORKERS[name]) < WORKERS[name] // 2, (
                "a partial answer has the other server's keys"
            )
            assert client.get(STORE[name], entry.key).value == entry.value
        lost = next(
            key
            for key in deployed.expected(STORE[name])
            if owner(key, WORKERS[name]) >= WORKERS[name] // 2
        )
        with pytest.raises(StateError):
            client.get(STORE[name], lost)

    world.run()
    watcher.check()
    compare(world)
    servers[1].start().wait(120)
    expected = deployed.expected(STORE[name])
    for server in (0, 1):
        assert deployed.entries(STORE[name], server) == expected


def test_sqlite_shards_are_refused(deploy: Deploy) -> None:
    world = deploy("orders").world
    PIPELINES["orders"].feed(world, 100, 0)
    driver = world.run(expect=1, SLUICE_SHARDS=f"sqlite:///{world.home}/shards", SLUICE_LEDGER="")
    assert f"The executors of {world.master} cannot open sqlite:///" in driver.output
    assert "Set SLUICE_SHARDS to a PostgreSQL database" in driver.output
