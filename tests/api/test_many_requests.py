"""Airflow's API server answers many requests of the plugin with the same threads and files."""

from __future__ import annotations

import itertools

import httpx
import pytest

from sluice.support.processes import with_descendants
from tests.soak.sizes import Size, assert_flat, size_of
from tests.support.airflow_server import AirflowServer

STORE = "/sluice/v1/stores/general_orders_count"
PATHS = (
    f"{STORE}/keys/store_5",
    f"{STORE}/keys/unknown",
    f"{STORE}?limit=10",
    "/sluice/v1/pipelines",
    "/sluice/v1/pipelines/orders",
    "/v1/orders/count/general_orders",
    "/sluice/",
)


@pytest.mark.heavy  # the REST API behind state servers answers three thousand requests in tests/servers
def test_five_hundred_requests_leave_no_threads_and_files(
    airflow: AirflowServer, viewer: httpx.Client
) -> None:
    ask(viewer, 100)
    before = size(airflow)
    assert ask(viewer, 500) == {200, 404}
    assert_flat(before, size(airflow))


def ask(client: httpx.Client, count: int) -> set[int]:
    """Send requests of all kinds. Returns the statuses of the answers."""
    return {
        client.get(path).status_code for path in itertools.islice(itertools.cycle(PATHS), count)
    }


def size(airflow: AirflowServer) -> Size:
    return size_of(process for pid in airflow.pids for process in with_descendants(pid))
