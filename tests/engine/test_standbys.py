"""A worker's state server is killed: its standby answers queries, and the next run promotes it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from sluice.errors import Refused
from sluice.observe.audit_report import report
from sluice.operations.repair import RepairingRun
from sluice.plan import plan
from sluice.query import Reader
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.remote import standby_copies
from sluice.state.remote.opening import open_shard
from tests.engine.conftest import Running, Start
from tests.engine.shop import sums
from tests.servers.hosts import TOKEN
from tests.servers.processes import ServerProcess, environment

QUERIES = 60


@pytest.mark.fault(
    "F36", "kill -9 of a state server during queries; the next run promotes its standby"
)
def test_the_next_run_promotes_the_standby_of_a_killed_server(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
    monkeypatch.setattr(standby_copies, "RETRY_SECONDS", 0.5)
    settings.cache_clear()
    running = start(sums)
    name, configuration = running.pipeline.name, running.settings
    first, second = (
        ServerProcess(
            environment(configuration.home, tmp_path / folder, configuration.ledger), *claims
        )
        for folder, claims in (("first", ("--workers", "0", "--pipeline", name)), ("second", ()))
    )
    with ExitStack() as stack:
        ledger = stack.enter_context(running.ledger())
        for server in (first, second):
            server.start()
            stack.callback(server.kill)
        for server in (first, second):
            server.wait()
        assert sent(running, 5) == {"k": {"last": 5, "sum": 5}}
        ledger.standbys.add(Placement(name, 0, "127.0.0.1", second.port))
        assert sent(running, 1) == {
            "k": {"last": 1, "sum": 6}
        }  # the run refreshes the standby at its end
        printed = StringIO()
        assert report(configuration.ledger, name, "", Console(file=printed, width=200), verify=True)
        assert (
            "✓ worker 0's standby, at snapshot 1.1: all state rows and operator states match"
            in printed.getvalue()
        )
        (old,) = (worker.location for worker in ledger.generations.workers(name))

        answered_by_standby = asyncio.run(query_while_killed(ledger, name, first))
        assert 0 < answered_by_standby < QUERIES

        assert sent(running, 10) == {"k": {"last": 10, "sum": 16}}
        assert ledger.placements.of(name)[0].port == second.port
        (note,) = ledger.notes.all(name)
        assert note.text.startswith(
            f"Worker 0: the standby at 127.0.0.1:{second.port}, which had snapshot 1.1, took"
        )

        again = ServerProcess(
            environment(configuration.home, tmp_path / "first", configuration.ledger),
            port=first.port,
        )
        stack.enter_context(again)
        with pytest.raises(Refused, match="not at this server"):
            open_shard(old)
        assert sent(running, 7) == {"k": {"last": 7, "sum": 23}}
    settings.cache_clear()


def sent(running: Running, amount: int) -> dict[str, dict[str, int]]:
    """The store after a run that reads one more amount."""
    running.send("amounts", (b"k", b'{"n":%d}' % amount))
    assert RepairingRun(running.spark, plan(running.pipeline).job, running.settings).run() == 1
    return running.store("sums")


async def query_while_killed(ledger: Ledger, pipeline: str, server: ServerProcess) -> int:
    """Query the key while the server is killed. Returns how many of the queries the standby answered."""
    reader, by_standby, killing = Reader(ledger), 0, None
    (store,) = [store for store in await reader.catalogue.stores() if store.pipeline == pipeline]
    for number in range(QUERIES):
        if number == 20:
            killing = asyncio.create_task(asyncio.to_thread(server.kill))
        answer = await reader.get(await reader.catalogue.pin(store), "k")
        assert [msgspec.json.decode(entry.value) for entry in answer.entries] == [
            {"last": 1, "sum": 6}
        ]
        assert (answer.pin.snapshot.id, answer.partial) == ("1.1", False)
        by_standby += answer.workers[0].standby
        if killing is not None:
            await asyncio.sleep(0.01)
    await reader.workers.close()
    return by_standby
