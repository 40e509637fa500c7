"""A pipeline's state is spread over more or fewer workers while some of them are at state servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.local.broker import EmbeddedKafka
from sluice.operations.moves import move
from sluice.operations.repartition import repartition
from sluice.state.ledger.placement import Placement
from tests.servers.hosts import Host
from tests.support.installation import Installation, content, expected, settings_of
from tests.unit.operations.test_repartition_command import job_of


@pytest.mark.parametrize("moved", [[1], [0, 1]])
def test_the_state_of_moved_workers_is_spread(
    moved: list[int], tmp_path: Path, kafka: EmbeddedKafka
) -> None:
    shop = Installation(settings_of(tmp_path, bootstrap=kafka.bootstrap))
    hosts = [Host(shop.ledger, tmp_path / f"host{number}").start() for number in range(2)]
    try:
        for number in moved:
            move(shop.ledger, Placement("orders", number, "127.0.0.1", hosts[number].port))
        for generation, workers in ((2, 3), (3, 1), (4, 2)):
            assert repartition(job_of(workers), shop.settings).generation == generation
            assert content(shop.ledger) == expected(generation - 2)
            shop.states.generation, shop.states.workers, shop.workers = generation, workers, workers
            shop.publish()
            assert content(shop.ledger)[generation - 1] == expected(generation - 1)[generation - 1]
        ports = [worker.port for worker in shop.ledger.generations.workers("orders")]
        assert ports == [hosts[number].port if number in moved else 0 for number in range(2)]
        assert not list(tmp_path.rglob("g2/*.sqlite")), "removed, wherever its shards were"
    finally:
        for host in hosts:
            host.stop()
