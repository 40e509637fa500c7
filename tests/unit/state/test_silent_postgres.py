"""PostgreSQL falls silent, without a reset: behind a lost network, or because its processes are frozen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest
from sqlalchemy import make_url

from sluice.engine.run.driver_lease import Lease, Patience, this_process
from sluice.errors import EngineError, SluiceError, StateError, TooSlow
from sluice.query import ledger_reads
from sluice.query.ledger_reads import read_ledger
from sluice.query.local_worker import LocalWorker
from sluice.state import time_limits
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.postgres_connection import connect
from sluice.state.queries import worker_queries
from sluice.state.shard.local_shard import LocalShard
from sluice.state.time_limits import query_deadline, waits_limited
from sluice.values.key_owners import owner
from tests.support.api_client import Api
from tests.support.postgres import database_with_ledger, frozen, new_database
from tests.support.silent_network import SilentNetwork
from tests.support.states import States
from tests.unit.sinks.test_postgres_tables import begun

pytestmark = pytest.mark.unit

SHORT = 0.5
"""Time limit of an access in these tests."""
IMMEDIATELY = 3.0
"""Psycopg tries to connect for 2 s at least."""


@pytest.fixture
def network(postgres: str) -> Iterator[SilentNetwork]:
    with SilentNetwork(make_url(postgres).port or 5432) as network:
        yield network


@pytest.fixture
def url(postgres: str, network: SilentNetwork) -> str:
    """The address of an empty database behind the network."""
    return (
        make_url(new_database(postgres))
        .set(port=network.port)
        .render_as_string(hide_password=False)
    )


def seconds(act: Callable[[], object], error: type[SluiceError], match: str) -> float:
    """How long something takes until it fails."""
    began = time.monotonic()
    with pytest.raises(error, match=match):
        act()
    return time.monotonic() - began


@pytest.mark.fault(
    "F41", "the network to the ledger is lost without a reset, or PostgreSQL is frozen"
)
def test_an_access_of_the_ledger_ends_and_the_next_one_works_when_the_network_is_back(
    url: str, network: SilentNetwork
) -> None:
    with Ledger.open(url) as ledger:
        network.is_silent = True
        with waits_limited(SHORT):
            assert (
                seconds(ledger.generations.pipelines, StateError, "not answered|timeout")
                < IMMEDIATELY
            )
        network.is_silent = False
        assert ledger.generations.pipelines() == []


@pytest.mark.fault("F41", "the network to a shard's database is lost without a reset")
def test_a_query_of_a_shard_ends_at_its_deadline(url: str, network: SilentNetwork) -> None:
    states = States(url)
    states.publish([(0, "a", -1, -1, "[1]")])
    with LocalShard.open(states.location(0)) as shard:
        assert shard.journal().batches
        network.is_silent = True
        with query_deadline(time.monotonic() + SHORT, SHORT):
            assert seconds(shard.journal, StateError, "not answered in time") < IMMEDIATELY
        with query_deadline(time.monotonic() + SHORT, SHORT):
            assert (
                seconds(lambda: LocalShard.open(states.location(0)), StateError, "timeout")
                < IMMEDIATELY
            )
        network.is_silent = False
        assert shard.journal().batches


@pytest.mark.fault(
    "F41", "the network to a shard's database is lost while many queries need a connection"
)
def test_queries_that_wait_for_each_others_connection_end_at_their_deadlines(
    url: str, network: SilentNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "QUERY_SECONDS", SHORT)
    states = States(url)
    snapshot = states.publish({"a": "[1]"})
    worker = LocalWorker(states.location(owner("a", 2)))
    query = worker_queries.Value(0, 0, snapshot.batch, "a")

    async def ask() -> list[object]:
        return await asyncio.gather(
            *(worker.execute(query) for _ in range(4)), return_exceptions=True
        )

    assert [bytes(value) for value in asyncio.run(ask())] == [b"1"] * 4  # type: ignore[call-overload]
    asyncio.run(worker.close())
    network.is_silent = True
    began = time.monotonic()
    assert {type(error) for error in asyncio.run(ask())} <= {StateError, TooSlow}
    assert time.monotonic() - began < IMMEDIATELY
    network.is_silent = False
    assert [bytes(value) for value in asyncio.run(ask())] == [b"1"] * 4  # type: ignore[call-overload]


@pytest.mark.fault(
    "F41", "PostgreSQL is frozen while requests and the renewal of a lease wait for it"
)
def test_requests_and_renewals_end_while_postgresql_is_frozen(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_reads, "ANSWER_SECONDS", SHORT)
    monkeypatch.setattr(time_limits, "QUERY_SECONDS", SHORT)
    states = States(database_with_ledger(postgres))
    states.publish({"a": "[1, 2]", "b": "[3, 4]"})
    paths = [
        "stores",
        "stores/totals/keys/a",
        "stores/totals",
        "stores/totals/count",
        "pipelines/orders/snapshots",
    ]
    statuses: dict[str, list[int]] = {path: [] for path in paths}
    longest = dict.fromkeys(paths, 0.0)
    is_over = threading.Event()

    def ask(address: str, path: str) -> None:
        with httpx.Client(base_url=f"{address}/sluice/v1/", trust_env=False, timeout=30) as client:
            while not is_over.is_set():
                began = time.monotonic()
                statuses[path].append(client.get(path).status_code)
                longest[path] = max(longest[path], time.monotonic() - began)

    with (
        Api(states.ledger, folder=tmp_path).serve() as address,
        Lease(states.ledger.leases, states.ref, this_process(""), Patience(beat_s=0.05)) as lease,
        ThreadPoolExecutor(len(paths)) as pool,
    ):
        asking = [pool.submit(ask, address, path) for path in paths]
        while not all(statuses.values()):
            time.sleep(0.01)
        with frozen(postgres):
            while not all(codes[-1] == 503 for codes in statuses.values()):
                time.sleep(0.01)
        while not all(codes[-1] == 200 for codes in statuses.values()):
            time.sleep(0.01)
        is_over.set()
        for each in asking:
            each.result()
        lease.require_in_ledger()
    assert {code for codes in statuses.values() for code in codes} == {200, 503}
    assert max(longest.values()) < IMMEDIATELY, longest


@pytest.mark.fault("F41", "the network to the database of a table is lost without a reset")
def test_work_without_a_limit_ends_if_the_server_accepts_no_connection(
    url: str, network: SilentNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.state.postgres_connection.SILENT_SECONDS", 0.3)
    monkeypatch.setattr("sluice.state.postgres_connection.CONNECT_SECONDS", 2)
    with connect(url) as connection:
        connection.execute(
            "SELECT pg_sleep(1)"
        )  # A long statement is no silence: the server accepts connections.
        network.is_silent = True
        with pytest.raises(psycopg.OperationalError, match="silent for 0 s and is not reachable"):
            connection.execute("SELECT 1")
    network.is_silent = False
    tables = begun(url)
    network.is_silent = True
    assert seconds(tables.fence, EngineError, "timeout|not reachable") < 2 * IMMEDIATELY


@pytest.mark.fault("F41", "the network to the ledger is lost while a lease is held")
def test_a_lease_is_renewed_again_after_a_silence(
    url: str, network: SilentNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(url) as ledger:
        ref = GenerationRef("orders", 1)
        limited = ledger.leases.renew

        def beat(row: object) -> bool:
            with waits_limited(SHORT):
                return limited(row)  # type: ignore[arg-type]

        monkeypatch.setattr(ledger.leases, "renew", beat)
        with Lease(ledger.leases, ref, this_process(""), Patience(beat_s=0.05)) as lease:
            network.is_silent = True
            time.sleep(2 * SHORT)
            network.is_silent = False
            before = ledger.leases.get(ref)
            until = time.monotonic() + 20
            while ledger.leases.get(ref) == before and time.monotonic() < until:
                time.sleep(0.05)
            assert ledger.leases.get(ref) != before, "the lease is renewed"
            lease.check()


def test_a_request_does_not_wait_for_threads_that_wait_for_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_reads, "ANSWER_SECONDS", 0.2)
    answered = threading.Event()

    async def ask() -> list[object]:
        reads = (read_ledger(lambda: answered.wait(30)) for _ in range(20))
        return await asyncio.gather(*reads, return_exceptions=True)

    began = time.monotonic()
    results = asyncio.run(ask())
    answered.set()
    assert time.monotonic() - began < IMMEDIATELY
    assert {getattr(result, "detail", "") for result in results} == {
        "The ledger did not answer within 0.2 s."
    }
