from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, make_url

from sluice.errors import NotFound, NotReady, QueryError, StateError
from sluice.query import Answer, AsOf, Pin, Reader
from sluice.query import catalogue as catalogue_module
from sluice.state.database import transaction
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import WORKERS
from sluice.state.model import NO_WINDOW
from sluice.state.shard.ranges import RowRange
from sluice.values.key_owners import owner
from tests.support.states import States, ledger_url

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "FRESH_SECONDS", 0.0)


@pytest.fixture
def states(database: str) -> States:
    return States(database)


@pytest.fixture
def local(tmp_path: Path) -> States:
    """SQLite only, so that a test can damage files."""
    return States(f"sqlite:///{tmp_path}/state", workers=3)


@pytest.fixture
def reader(states: States) -> Reader:
    return Reader(states.ledger)


def shard_file(states: States, worker: int) -> Path:
    return Path(make_url(states.location(worker)).database or "")


async def pinned(reader: Reader, store: str = "totals", as_of: str | None = None) -> Pin:
    (results,) = [known for known in await reader.catalogue.stores() if known.name == store]
    return await reader.catalogue.pin(results, AsOf(as_of))


def values(answer: Answer) -> dict[str, str]:
    return {entry.key: bytes(entry.value).decode() for entry in answer.entries}


def ask(
    reader: Reader, key: str, store: str = "totals", as_of: str | None = None
) -> dict[str, str]:
    async def run() -> Answer:
        return await reader.get(await pinned(reader, store, as_of), key)

    return values(asyncio.run(run()))


def everything(reader: Reader, store: str = "totals", as_of: str | None = None) -> Answer:
    async def run() -> Answer:
        return await reader.all(await pinned(reader, store, as_of))

    return asyncio.run(run())


def test_values_keep_their_published_text(states: States, reader: Reader) -> None:
    states.publish({"a": '[1, {"n":1, "sum":27.00}]', "b": "[2,null]"})
    assert ask(reader, "a") == {"a": "1"}
    assert ask(reader, "a", "revenue") == {"a": '{"n":1, "sum":27.00}'}
    assert ask(reader, "b", "revenue") == {}
    assert ask(reader, "missing") == {}
    assert values(everything(reader, "revenue")) == {"a": '{"n":1, "sum":27.00}'}


def test_values_of_type_any_have_the_json_of_their_topic(states: States, reader: Reader) -> None:
    states.publish(
        {
            "a": r'[1,{"d":{"_json":"[1.0,  \"\\u00e9\"]"},"l":[{"_json":"2"}],"t":{"_json":"no JSON"}}]'
        }
    )
    plain = r'{"d":[1.0,  "\u00e9"],"l":[2],"t":{"_json":"no JSON"}}'
    assert ask(reader, "a", "revenue") == values(everything(reader, "revenue")) == {"a": plain}


def test_all_entries_of_all_workers_are_sorted_by_key(states: States, reader: Reader) -> None:
    states.publish({f"k{number:02}": f"[{number}]" for number in range(20)})
    answer = everything(reader)
    assert [entry.key for entry in answer.entries] == [f"k{number:02}" for number in range(20)]
    assert [(worker.number, worker.status) for worker in answer.workers] == [(0, "ok"), (1, "ok")]
    assert not answer.partial


def test_pages_cover_every_entry_once(states: States, reader: Reader) -> None:
    states.publish({f"k{number:02}": f"[{number}]" for number in range(20)})

    async def pages() -> list[list[str]]:
        pin, after = await pinned(reader), None
        result: list[list[str]] = []
        while not result or after is not None:
            page = await reader.scan(pin, RowRange(prefix="k"), after=after, limit=7)
            after = page.after
            result.append([entry.key for entry in page.entries])
        return result

    result = asyncio.run(pages())
    assert [len(page) for page in result] == [7, 7, 6]
    assert [key for page in result for key in page] == [f"k{number:02}" for number in range(20)]


def test_windows_of_a_key(states: States, reader: Reader) -> None:
    states.publish([(1, "a", start, start + 15_000, f"[{start}]") for start in (0, 15_000, 30_000)])

    async def run() -> Answer:
        return await reader.windows(await pinned(reader, "windows"), "a", 15_000, 30_000)

    results = [
        (entry.window_start, entry.window_end, bytes(entry.value))
        for entry in asyncio.run(run()).entries
    ]
    assert results == [(15_000, 30_000, b"15000"), (30_000, 45_000, b"30000")]


def test_the_query_must_fit_the_kind_of_store(states: States, reader: Reader) -> None:
    states.publish({"a": "[1,2]"})
    with pytest.raises(QueryError, match="has windows"):
        ask(reader, "a", "windows")
    with pytest.raises(QueryError, match="has no windows"):
        asyncio.run(_windows_of_totals(reader))


async def _windows_of_totals(reader: Reader) -> Answer:
    return await reader.windows(await pinned(reader), "a")


def test_earlier_snapshots_can_be_queried(states: States, reader: Reader) -> None:
    states.publish({"a": "[1]", "b": "[1]"})
    states.publish({"a": "[2]", "b": None})
    assert ask(reader, "a", as_of="1.0") == {"a": "1"}
    assert ask(reader, "a") == {"a": "2"}
    assert values(everything(reader)) == {"a": "2"}
    assert values(everything(reader, as_of="1.0")) == {"a": "1", "b": "1"}
    with pytest.raises(NotFound, match=r"no snapshot 1\.7"):
        ask(reader, "a", as_of="1.7")
    for nonsense in ("", "x", "x.1", "1.-1", "1.1.1", "٣.1", "1." + "9" * 40):
        with pytest.raises(QueryError, match="is not a snapshot"):
            ask(reader, "a", as_of=nonsense)


def test_before_the_first_snapshot(reader: Reader) -> None:
    with pytest.raises(NotReady, match="published nothing yet"):
        everything(reader)


@pytest.mark.fault("F12", "a shard missing, empty, full of garbage, while it is read")
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage"])
def test_an_unreadable_shard_makes_the_answer_partial(local: States, damage: str) -> None:
    reader = Reader(local.ledger)
    keys = {f"k{number:02}": f"[{number}]" for number in range(20)}
    local.publish(keys)
    whole = everything(reader)  # opens the connections
    lost = shard_file(local, 1)
    content = lost.read_bytes()
    for file in lost.parent.glob("worker-1.sqlite*"):
        file.unlink()
    if damage != "missing":
        lost.write_bytes(b"" if damage == "empty" else b"garbage!" * 4096)

    answer = everything(reader)
    assert answer.partial
    assert [worker.status for worker in answer.workers] == ["ok", "unavailable", "ok"]
    assert answer.workers[1].reason
    assert str(lost) not in answer.workers[1].reason
    assert set(values(answer)) == {key for key in keys if owner(key, 3) != 1}
    mine = next(key for key in keys if owner(key, 3) == 1)
    with pytest.raises(StateError, match="Worker 1, which owns the key, is unavailable"):
        ask(reader, mine)

    lost.unlink(missing_ok=True)
    lost.write_bytes(content)
    assert everything(reader) == whole


def test_a_shard_that_another_program_has_locked_makes_the_answer_partial(local: States) -> None:
    local.publish({f"k{number:02}": f"[{number}]" for number in range(20)})
    other = sqlite3.connect(shard_file(local, 1), isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    other.execute("PRAGMA user_version = 0")
    try:
        answer = everything(Reader(local.ledger))
        assert [worker.status for worker in answer.workers] == ["ok", "unavailable", "ok"]
        assert "database is locked" in answer.workers[1].reason
    finally:
        other.close()


@pytest.mark.parametrize("number", [1, 2])
def test_a_lost_row_of_a_worker_makes_the_answer_partial_until_the_next_run(
    database: str, number: int
) -> None:
    states = States(database, workers=3)
    keys = {f"k{number:02}": f"[{number}]" for number in range(20)}
    states.publish(keys)
    with transaction(states.ledger.engine) as connection:
        connection.execute(delete(WORKERS).where(WORKERS.c.number == number))

    reader = Reader(states.ledger)
    answer = everything(reader)
    assert [worker.status == "ok" for worker in answer.workers] == [n != number for n in range(3)]
    assert answer.workers[number].reason.startswith("The ledger has lost the worker's address.")
    assert set(values(answer)) == {key for key in keys if owner(key, 3) != number}
    with pytest.raises(StateError, match=f"Worker {number}, which owns the key, is unavailable"):
        ask(reader, next(key for key in keys if owner(key, 3) == number))

    states.ledger.generations.register(states.info())  # as a run does
    assert set(values(everything(Reader(states.ledger)))) == keys.keys()


def test_any_worker_answers_for_a_global_table(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}/state", workers=3)
    states.stores = (states.store("stores", "global", group_id=5),)
    states.ledger.generations.register(states.info())
    states.publish([(5, "a", NO_WINDOW, NO_WINDOW, '["A"]')])
    reader = Reader(states.ledger)
    for lost in (0, 1):
        assert values(everything(reader, "stores")) == ask(reader, "a", "stores") == {"a": '"A"'}
        assert not everything(reader, "stores").partial
        for file in shard_file(states, lost).parent.glob(f"worker-{lost}.sqlite*"):
            file.unlink()
    assert values(everything(reader, "stores")) == {"a": '"A"'}


def test_a_new_snapshot_is_seen_within_the_documented_time(
    states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue_module, "FRESH_SECONDS", 0.05)
    reader = Reader(states.ledger)
    states.publish({"a": "[1]"})
    assert ask(reader, "a") == {"a": "1"}
    states.publish({"a": "[2]"})
    time.sleep(0.05)
    assert ask(reader, "a") == {"a": "2"}


class Publisher(threading.Thread):
    """Publishes snapshots, until it is stopped, in which every key has the batch's number as its value."""

    def __init__(self, states: States, keys: list[str]) -> None:
        super().__init__(daemon=True)
        self.states, self.keys = states, keys
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            self.states.publish(dict.fromkeys(self.keys, f"[{self.states.batch + 1}]"))


@pytest.fixture
def published(database: str) -> Iterator[Publisher]:
    states = States(database, workers=4)
    publisher = Publisher(states, [f"k{number}" for number in range(12)])
    states.publish(dict.fromkeys(publisher.keys, "[0]"))
    publisher.start()
    yield publisher
    publisher.stopped.set()
    publisher.join()


def test_no_reader_sees_a_partial_or_older_snapshot(published: Publisher) -> None:
    with Ledger.open(ledger_url(published.states.database)) as ledger:
        reader = Reader(ledger)
        batches = [0]
        while len(set(batches)) < 10:
            assert published.is_alive()
            answer = everything(reader)
            assert len(answer.entries) == 12
            assert set(values(answer).values()) == {str(answer.pin.snapshot.batch)}
            assert answer.pin.snapshot.batch >= batches[-1]
            batches.append(answer.pin.snapshot.batch)
