"""Many heavy queries at once: refused politely, and Airflow's own UI stays usable."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import httpx
import pytest

from tests.airflow_server import AirflowServer
from tests.states import States

pytestmark = pytest.mark.api

QUERIES = 500
ROWS = 30_000
TIMES = 4
"""The UI may have to wait as many times longer than behind as many of Airflow's own cheapest requests, and a second."""


@pytest.fixture
def heavy(states: States) -> str:
    """A store of 30,000 windows, that nobody but the admin may read."""
    payroll = States(states.database, pipeline="payroll", workers=1)
    payroll.batch = 0
    payroll.publish((1, f"key_{n % 100}", n * 1_000, n * 1_000 + 1_000, f"[{n}.25]") for n in range(ROWS))
    return "/sluice/v1/stores/windows/combine?pipeline=payroll"


async def ask_all(address: str, token: str, path: str) -> tuple[Counter[int], list[float]]:
    """Ask for as much at once, each a question of its own; beside it what Airflow's UI asks, and how long it took."""
    headers, limits = {"Authorization": f"Bearer {token}"}, httpx.Limits(max_connections=QUERIES + 10)
    async with httpx.AsyncClient(base_url=address, headers=headers, limits=limits, timeout=120) as client:

        async def ask(number: int) -> int:
            answer = await client.get(f"{path}&to={2_000_000_000 + number}")
            if answer.status_code == 200:
                assert answer.json()["groups"][0]["entries"] == ROWS
            else:
                assert answer.headers["Content-Type"] == "application/problem+json"
                assert answer.headers["Retry-After"]
            return answer.status_code

        took = []
        asking = [asyncio.create_task(ask(number)) for number in range(QUERIES)]
        await asyncio.sleep(0.1)
        while not all(task.done() for task in asking):
            began = time.monotonic()
            assert (await client.get("/api/v2/monitor/health")).status_code == 200
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.1)
        return Counter([await task for task in asking]), took


async def ask_cheaply(address: str) -> None:
    """As many requests at once, for which Airflow looks nothing up."""
    limits = httpx.Limits(max_connections=QUERIES)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        await asyncio.gather(*(client.get("/api/v2/version") for _ in range(QUERIES)))


def test_heavy_queries_are_turned_away_and_the_ui_stays_usable(airflow: AirflowServer, heavy: str) -> None:
    token = airflow.token("admin")
    began = time.monotonic()
    asyncio.run(ask_cheaply(airflow.url))
    cheap = time.monotonic() - began
    statuses, took = asyncio.run(ask_all(airflow.url, token, heavy))
    assert set(statuses) <= {200, 429, 503}
    assert statuses[200] >= 4
    assert statuses[429] > QUERIES / 2
    assert max(took) < TIMES * cheap + 1
