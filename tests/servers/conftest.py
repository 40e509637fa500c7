from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from tests.api.states import orders_states, totals, windows
from tests.servers.hosts import TOKEN, Host
from tests.support.states import States, ledger_url

LOCATIONS = [f"store_{number}" for number in range(40)]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    """Three hosts; the first has two of the four workers."""
    database = f"sqlite:///{tmp_path}"
    ledger = Ledger.open(ledger_url(database))
    results = [Host(ledger, tmp_path / f"host{number}") for number in range(3)]
    for host, numbers in zip(results, ((0, 3), (1,), (2,)), strict=True):
        host.start(*numbers)
    yield results
    for host in results:
        host.begin_stop()
    for host in results:
        host.stop()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host with all workers of the orders pipeline and one published snapshot, for tests that change nothing."""
    home = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
        settings.cache_clear()
        made = Host(Ledger.open(ledger_url(f"sqlite:///{home}")), home / "shards").start(0, 1, 2, 3)
        publish(orders_states(f"sqlite:///{home}", workers=4))
    settings.cache_clear()
    yield made
    made.stop()


@pytest.fixture
def states(hosts: list[Host], tmp_path: Path) -> States:
    """The orders pipeline's state with one snapshot, written through the servers."""
    return publish(orders_states(f"sqlite:///{tmp_path}", workers=4))


def publish(states: States) -> States:
    """Publish the first snapshot of the orders pipeline."""
    states.publish(
        [
            *totals(
                "general", {location: (n + 1, f"{n}.00") for n, location in enumerate(LOCATIONS)}
            ),
            *totals("restaurant", {"store_1": (7, "0.70")}),
            *windows("general", "store_1", {"2022-12-05T08:55:15": (1, "27.00")}),
            (4, "store_1", -1, -1, '[{"locationId":"store_1"}]'),
        ]
    )
    return states
