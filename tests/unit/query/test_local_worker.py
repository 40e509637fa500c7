"""Lookups in a file share a read transaction, and never miss a batch that has been published."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import StateError
from sluice.query import local_worker
from sluice.query.local_worker import LocalWorker
from sluice.state.queries.worker_queries import Value, Values
from sluice.state.shard.local_shard import LocalShard
from tests.support.state_rows import write_rows


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LocalShard]:
    with LocalShard.create(f"sqlite:///{tmp_path}/worker-0.sqlite") as shard:
        yield shard


@pytest.fixture
def worker(tmp_path: Path, writer: LocalShard) -> LocalWorker:
    write(writer, 0)
    return LocalWorker(f"sqlite:///{tmp_path}/worker-0.sqlite")


def write(writer: LocalShard, batch: int, *keys: str) -> None:
    write_rows(writer, batch, [(0, key, -1, -1, f"[{batch}]") for key in keys or ("a", "b")])


async def get(worker: LocalWorker, as_of: int, key: str = "a") -> int | None:
    value = await worker.execute(Value(0, 0, as_of, key))
    return None if value is None else int(bytes(value))


async def held(worker: LocalWorker, as_of: int = 0) -> LocalShard:
    """Look up twice, so that the worker holds its shard. Returns the shard."""
    await get(worker, as_of)
    await get(worker, as_of)
    shard = worker._shards["get"]
    assert is_held(shard)
    return shard


def is_held(shard: LocalShard) -> bool:
    return bool(shard._driver._connection.in_transaction)  # type: ignore[attr-defined]


def test_a_lookup_sees_every_batch_that_has_been_published(
    worker: LocalWorker, writer: LocalShard
) -> None:
    async def run() -> None:
        await held(worker)
        chance = random.Random(3)
        for batch in range(1, 30):
            write(writer, batch)
            for _ in range(chance.randrange(3)):
                earlier = chance.randrange(batch)
                assert await get(worker, earlier) == earlier
            assert await get(worker, batch) == batch
            values = await worker.execute(Values(0, 0, batch, ["b", "a", "c"]))
            assert {key: int(bytes(value)) for key, value in values.items()} == {
                "a": batch,
                "b": batch,
            }
        await worker.close()

    asyncio.run(run())


def test_a_lookup_in_a_thread_sees_every_batch_too(worker: LocalWorker, writer: LocalShard) -> None:
    async def run() -> None:
        await held(worker)
        write(writer, 1)
        in_thread = asyncio.to_thread(worker._execute, "get", Value(0, 0, 1, "a"), float("inf"))
        assert bytes(await in_thread or b"") == b"1"
        assert await get(worker, 0) == 0
        await worker.close()

    asyncio.run(run())


def test_a_held_shard_is_let_go(
    worker: LocalWorker, writer: LocalShard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_worker, "HOLD_SECONDS", 0.02)

    async def run() -> None:
        shard = await held(worker)
        await asyncio.sleep(0.3)
        assert not is_held(shard), "an idle server would keep the writer from shortening its log"
        assert await get(worker, 0) == 0
        assert is_held(shard)
        await worker.close()

    asyncio.run(run())


def test_a_held_shard_does_not_stop_writers(worker: LocalWorker, writer: LocalShard) -> None:
    async def run() -> None:
        await held(worker)
        write(writer, 1, *(f"key {number}" for number in range(5_000)))
        writer.compact(1)
        writer.seal(sealed=True)
        writer.seal(sealed=False)
        assert await get(worker, 1, "key 7") == 1
        await worker.close()

    asyncio.run(run())


def test_a_removed_or_replaced_file_is_noticed(
    worker: LocalWorker, writer: LocalShard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local_worker, "HOLD_SECONDS", 0.02)
    file = tmp_path / "worker-0.sqlite"

    async def run() -> None:
        await held(worker)
        for part in tmp_path.glob("worker-0.sqlite*"):
            part.unlink()
        with LocalShard.create(f"sqlite:///{file}") as another:
            write_rows(another, 0, [(0, "a", -1, -1, "[100]")])
            write_rows(another, 1, [(0, "a", -1, -1, "[101]")])
        assert await get(worker, 1) == 101, "the old file does not have the batch"
        for part in tmp_path.glob("worker-0.sqlite*"):
            part.unlink()
        await asyncio.sleep(0.3)
        with pytest.raises(StateError):
            await get(worker, 1)
        await worker.close()

    asyncio.run(run())
