"""Queries read a shard only if it has the state that was published for its worker."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sluice.errors import StateError
from sluice.operations.snapshot_retention import retain
from sluice.query import AsOf, Reader
from sluice.query.results import Page
from sluice.server.served_shards import ServedShards
from sluice.state.ledger.placement import Placement
from sluice.state.queries.worker_queries import Value
from sluice.values.key_owners import owner
from tests.support.states import States

pytestmark = pytest.mark.unit

KEYS = [f"key {number}" for number in range(6)]


def file(states: States, worker: int) -> Path:
    return Path(make_url(states.location(worker)).database or "")


def copy(states: States, folder: Path) -> None:
    """Copy all shards, which no process has open."""
    folder.mkdir()
    for worker in range(2):
        shutil.copy(file(states, worker), folder / str(worker))


def put(states: States, worker: int, source: Path) -> None:
    """Put a copy in the place of a worker's shard."""
    place = file(states, worker)
    for part in place.parent.glob(f"{place.name}*"):
        part.unlink()
    shutil.copy(source, place)


@pytest.fixture
def states(tmp_path: Path) -> States:
    states = States(f"sqlite:///{tmp_path}/state")
    states.publish(dict.fromkeys(KEYS, "[1,1]"))
    copy(states, tmp_path / "old")
    states.publish(dict.fromkeys(KEYS, "[2,2]"))
    copy(states, tmp_path / "new")
    return states


def swap(states: States, copies: Path) -> None:
    put(states, 0, copies / "new" / "1")
    put(states, 1, copies / "new" / "0")


def put_older(states: States, copies: Path) -> None:
    for worker in range(2):
        put(states, worker, copies / "old" / str(worker))


def link(states: States, copies: Path) -> None:
    for worker in range(2):
        file(states, worker).unlink()
        file(states, worker).symlink_to(copies / "new" / "1")


async def scanned(reader: Reader, as_of: str | None = None) -> Page:
    (store,) = await reader.catalogue.stores_named("totals")
    return await reader.scan(await reader.catalogue.pin(store, AsOf(as_of)))


@pytest.mark.parametrize(("replace", "wrong"), [(swap, {0, 1}), (put_older, {0, 1}), (link, {0})])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_shard_that_is_not_the_published_one_is_not_read(
    states: States,
    tmp_path: Path,
    replace: Callable[[States, Path], None],
    wrong: set[int],
    is_open: bool,
) -> None:
    async def run() -> None:
        reader = Reader(states.ledger)
        if is_open:
            assert [entry.key for entry in (await scanned(reader)).entries] == KEYS
        replace(states, tmp_path)
        for _ in range(2):  # an error does not make the shard known
            page = await scanned(reader)
            assert page.partial
            unavailable = {
                worker.number: worker.reason for worker in page.workers if worker.status != "ok"
            }
            assert unavailable.keys() == wrong
            assert "checksum of its rows at batch 1 is" in unavailable[0]
            assert "Put the published shard back, or start a run" in unavailable[0]
            with pytest.raises(StateError, match="Worker 0, which owns the key, is unavailable"):
                await reader.get(page.pin, next(key for key in KEYS if owner(key, 2) == 0))
        put(states, 0, tmp_path / "new" / "0")
        file(states, 1).unlink()
        put(states, 1, tmp_path / "new" / "1")
        assert [entry.key for entry in (await scanned(reader)).entries] == KEYS
        await reader.workers.close()

    asyncio.run(run())


def test_a_state_server_does_not_read_it_either(states: States, tmp_path: Path) -> None:
    swap(states, tmp_path)
    states.ledger.placements.claim(Placement("orders", 0, "127.0.0.1", 1))

    async def run() -> None:
        shards = ServedShards(states.ledger, f"sqlite:///{tmp_path}/state", "127.0.0.1", 1)
        worker = await shards.worker(states.ref, 0)
        with pytest.raises(StateError, match="does not have the published state"):
            await worker.execute(Value(0, 0, 1, "a"))

    asyncio.run(run())


def test_a_shard_is_compared_with_the_oldest_batch_that_is_kept(
    states: States, tmp_path: Path
) -> None:
    """A query that only asks whether the shard can be read names no batch of its own."""
    retain(states.ledger, "orders", keep_snapshots=1, keep_seconds=0)

    async def run() -> None:
        reader = Reader(states.ledger)
        workers = states.ledger.generations.workers("orders")
        assert {status.status for status in await reader.statuses(workers)} == {"ok"}
        await reader.workers.close()
        put_older(states, tmp_path)
        assert {status.status for status in await reader.statuses(workers)} == {"unavailable"}
        await reader.workers.close()

    asyncio.run(run())


def test_a_batch_without_rows_for_a_worker_is_the_published_state(
    states: States, tmp_path: Path
) -> None:
    states.publish({})
    put(states, 0, tmp_path / "new" / "0")  # it has no batch 2, but the same state

    async def run() -> None:
        reader = Reader(states.ledger)
        for as_of in (None, "1.1", "1.0"):
            assert [entry.key for entry in (await scanned(reader, as_of)).entries] == KEYS
        await reader.workers.close()

    asyncio.run(run())
