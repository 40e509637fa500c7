"""Runs that write their workers' shards through state servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.errors import EngineError
from sluice.operations.moves import move
from sluice.operations.repartition import repartition
from sluice.operations.state_import import import_state
from sluice.plan import plan
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.values.key_owners import owner
from tests.engine.conftest import Start
from tests.engine.shop import address, sale, shop, sums
from tests.engine.test_changed_stores import change, counted, summed
from tests.servers.hosts import TOKEN, Host
from tests.support.postgres import new_database


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    settings.cache_clear()


@pytest.mark.parametrize(
    "old_file", ["removed", pytest.param("moved back to", marks=pytest.mark.heavy)]
)
def test_operator_states_move_with_their_worker(
    start: Start, token: None, tmp_path: Path, old_file: str
) -> None:
    running = start(sums)
    name = running.pipeline.name

    def send(amount: int) -> dict[str, dict[str, int]]:
        running.send("amounts", (b"k", b'{"n":%d}' % amount))
        assert running.run() == 1
        return running.store("sums")

    assert send(5) == {"k": {"last": 5, "sum": 5}}
    with running.ledger() as ledger:
        home = Host(ledger, running.settings.home / "shards").start(pipeline=name)
        away = Host(ledger, tmp_path / "away").start(pipeline=name)
        move(ledger, Placement(name, 0, "127.0.0.1", away.port))
        assert send(1) == {"k": {"last": 1, "sum": 6}}
        assert away.calls[f"/local/{name}/1/0/calls/read_states"] == 1, (
            "the task reads states through the server"
        )
        if old_file == "removed":
            for file in home.folder.rglob("worker-0.sqlite*"):
                file.unlink()
        else:
            move(ledger, Placement(name, 0, "127.0.0.1", home.port))
        assert send(10) == {"k": {"last": 10, "sum": 16}}
        for host in (home, away):
            host.stop()
    settings.cache_clear()


def test_a_run_continues_after_its_state_was_imported_into_postgresql(
    start: Start, postgres: str
) -> None:
    running, database = start(sums), new_database(postgres)
    running.send("amounts", (b"k", b'{"n":5}'))
    assert running.run() == 1
    with running.ledger() as old, Ledger.open(database) as new:
        import_state(old, new, database)
    sqlite, running.settings = (
        running.settings,
        replace(running.settings, ledger=database, shards=database),
    )
    assert running.store("sums") == {"k": {"last": 5, "sum": 5}}
    running.send("amounts", (b"k", b'{"n":1}'))
    assert running.run() == 1
    assert running.store("sums") == {"k": {"last": 1, "sum": 6}}
    running.settings = sqlite
    with pytest.raises(EngineError, match="but the ledger does not have this batch"):
        running.run()


def test_workers_on_two_hosts_and_a_move_between_runs(
    start: Start, token: None, tmp_path: Path
) -> None:
    running = start(shop, sales=2)
    name = running.pipeline.name
    with running.ledger() as ledger:
        hosts = [Host(ledger, tmp_path / f"host{n}").start(n, pipeline=name) for n in range(2)]
        running.send("shops", address("a", "Aachen"))
        running.send("sales", sale("a", "1.10"), sale("b", "5.00"))
        assert running.run() == 3
        assert running.store("n") == {"a": 1, "b": 1}
        assert [len(list(host.folder.rglob("*.sqlite"))) for host in hosts] == [1, 1]

        move(ledger, Placement(name, owner("a", 2), "127.0.0.1", hosts[1 - owner("a", 2)].port))
        running.send("sales", sale("a", "2.20"), sale("b", "1.00"))
        assert running.run() == 2
        assert running.store("n") == {"a": 2, "b": 2}
        assert running.output("with_city") == [
            ("a", {"shop": "a", "amount": 1.1, "city": "Aachen"}),
            ("a", {"shop": "a", "amount": 3.3, "city": "Aachen"}),
        ]
        assert len({place.port for place in ledger.placements.of(name).values()}) == 1
        for host in hosts:
            host.stop()
    settings.cache_clear()


def test_stores_are_added_and_workers_change_after_a_move(
    start: Start, token: None, tmp_path: Path
) -> None:
    running = start(counted)
    name = running.pipeline.name
    running.send("sales", sale("a", 1), sale("b", 5), sale("a", 3))
    assert running.run() == 3
    with running.ledger() as ledger:
        host = Host(ledger, tmp_path / "host").start(pipeline=name)
        try:
            for number in range(running.pipeline.workers):
                move(ledger, Placement(name, number, "127.0.0.1", host.port))
            added = change(running, summed)
            assert added.store("amounts") == {
                "a": {"total": 4, "most": 3},
                "b": {"total": 5, "most": 5},
            }
            added.pipeline.workers = running.pipeline.workers + 1
            repartition(plan(added.pipeline).job, added.settings)
            added.send("sales", sale("a", 2), sale("c", 1))
            assert added.run() == 2
            assert added.store("n") == {"a": 3, "b": 1, "c": 1}
            assert {place.port for place in ledger.generations.workers(name)} == {host.port, 0}
        finally:
            host.stop()
    settings.cache_clear()
