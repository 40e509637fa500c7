"""A run on a standalone Spark cluster, whose executors have Python and the locked packages, but not Sluice."""

from __future__ import annotations

import subprocess

import pytest

from tests.cluster.conftest import Deploy
from tests.faults.orders import feed
from tests.faults.truth import compare

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


def test_orders_on_two_executors(deploy: Deploy) -> None:
    deployed = deploy("orders")
    world, cluster = deployed.world, deployed.cluster
    python = world.environment["PYSPARK_PYTHON"]
    assert (
        subprocess.run(
            [python, "-c", "import sluice"], cwd="/", env={}, capture_output=True
        ).returncode
        == 1
    )

    feed(world, 3_000, 0)
    world.run()

    compare(world)
    for worker in ("worker-0", "worker-1"):
        assert {"sluice.zip", "orders.py"} <= cluster.received(worker), "both executors ran tasks"
    expected = deployed.expected("general_orders_count")
    for server in (0, 1):
        assert deployed.entries("general_orders_count", server) == expected
