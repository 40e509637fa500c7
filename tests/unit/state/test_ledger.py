from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from sqlalchemy import create_engine, delete, make_url
from sqlalchemy.sql.compiler import SQLCompiler

from sluice.errors import DamagedState, LeaseError, NotFound, SettingsError, StateError, WentBack
from sluice.state.database import transaction
from sluice.state.ledger.leases import Holder
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import LEASES, TIMES
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationRef
from tests.support.states import NOON, States, ledger_url, make_audit, make_snapshot

pytestmark = pytest.mark.unit


@pytest.fixture
def states(database: str) -> States:
    return States(database)


def test_a_batch_published_twice_changes_nothing(states: States) -> None:
    assert states.ledger.snapshots.publish(make_snapshot(0))
    before = states.ledger.snapshots.recent("orders")
    assert not states.ledger.snapshots.publish(make_snapshot(0, counts={"read": 99}))
    assert states.ledger.snapshots.recent("orders") == before == [make_snapshot(0)]


def test_a_batch_that_does_not_follow_the_newest_snapshot_is_rejected(states: States) -> None:
    states.ledger.snapshots.publish(make_snapshot(4))
    with pytest.raises(StateError, match=r"Batch 4 .* the newest snapshot is 1.4"):
        states.ledger.snapshots.publish(make_snapshot(4, positions={"orders": {"0": 1}}))
    with pytest.raises(StateError, match=r"Batch 2 .* Start a new generation"):
        states.ledger.snapshots.publish(make_snapshot(2))
    assert states.ledger.snapshots.recent("orders") == [make_snapshot(4)]


def description(states: States) -> str:
    """The description of the current generation."""
    current = states.ledger.generations.current("orders")
    return "" if current is None else current.description


def test_a_registered_generation_is_read_back(states: States) -> None:
    assert states.ledger.generations.current("orders") == states.info()
    assert states.ledger.generations.pipelines() == ["orders"]
    assert [store.name for store in states.ledger.generations.stores()] == [
        "revenue",
        "totals",
        "windows",
    ]
    assert states.ledger.generations.stores("other") == []
    assert [worker.number for worker in states.ledger.generations.workers("orders")] == [0, 1]


def test_registering_again_updates_the_generation(states: States) -> None:
    states.ledger.generations.register(states.info(description="new"))
    assert description(states) == "new"


def test_a_second_generation_is_built_next_to_the_current_one(states: States) -> None:
    states.ledger.snapshots.publish(make_snapshot(7))
    states.generation = 2
    states.ledger.generations.register(states.info(description="second"))
    states.ledger.snapshots.publish(make_snapshot(0, generation=2))
    assert states.ledger.snapshots.latest("orders") == make_snapshot(7)
    assert states.ledger.snapshots.last_batch(GenerationRef("orders", 2)) == 0

    states.ledger.generations.promote(GenerationRef("orders", 2))
    assert states.ledger.snapshots.latest("orders") == make_snapshot(0, generation=2)
    assert description(states) == "second"
    with pytest.raises(NotFound):
        states.ledger.generations.promote(GenerationRef("orders", 3))


def test_snapshots_newest_first(states: States) -> None:
    for batch in range(4):
        states.ledger.snapshots.publish(make_snapshot(batch))
    assert [snapshot.batch for snapshot in states.ledger.snapshots.recent("orders", limit=2)] == [
        3,
        2,
    ]
    assert states.ledger.snapshots.get(GenerationRef("orders", 1), 1) == make_snapshot(1)
    assert states.ledger.snapshots.get(GenerationRef("orders", 1), 9) is None
    assert states.ledger.snapshots.latest("others") is None


def test_the_newest_snapshot_is_never_removed(states: States) -> None:
    for batch in range(4):
        states.ledger.snapshots.publish(make_snapshot(batch))
    assert states.ledger.snapshots.forget(GenerationRef("orders", 1), before=99) == 3
    assert [snapshot.batch for snapshot in states.ledger.snapshots.recent("orders")] == [3]


def test_positions_are_those_of_the_newest_snapshot(states: States) -> None:
    assert states.ledger.positions("orders") == {"orders": {}}
    for batch, offset in enumerate((3, 7)):
        states.ledger.snapshots.publish(
            make_snapshot(batch, positions={"orders": {"0": offset, "2": 1}})
        )
    assert states.ledger.positions("orders") == {"orders": {0: 7, 2: 1}}
    assert states.ledger.positions("unknown") == {}


def test_a_batch_continues_from_the_stream_times_of_the_batch_before(states: States) -> None:
    snapshots = states.ledger.snapshots
    assert snapshots.times_before(states.ref, 0) == {}
    for batch in (0, 1):
        assert snapshots.publish(make_snapshot(batch), times={"count/orders/0": batch})
    times = [snapshots.times_before(states.ref, batch) for batch in range(3)]
    assert times == [{}, {"count/orders/0": 0}, {"count/orders/0": 1}]
    assert snapshots.times_before(GenerationRef("orders", 2), 2) == {}
    with transaction(states.ledger.engine) as connection:
        connection.execute(delete(TIMES))
    with pytest.raises(
        DamagedState, match="no longer has the stream times before batch 2 of 'orders'"
    ):
        snapshots.times_before(states.ref, 2)


OPEN_THREE_TIMES = """
import os, sys
from sluice.state.ledger.ledger import Ledger

for _ in range(3):
    if os.fork() == 0:
        Ledger.open(sys.argv[1]).close()
        sys.exit()
print(*(os.wait()[1] for _ in range(3)))
"""


def test_many_processes_open_a_new_ledger_at_once(empty_database: str) -> None:
    """The processes have imported Sluice before they part, so that they open the ledger at the same time."""
    command = [sys.executable, "-c", OPEN_THREE_TIMES, ledger_url(empty_database)]
    assert subprocess.check_output(command, text=True).split() == ["0"] * 3


@pytest.mark.parametrize("url", ["mysql://secret@host/x", "no url", "sqlite://"])
def test_only_sqlite_and_postgresql_urls_are_accepted(url: str) -> None:
    with pytest.raises(SettingsError, match="address") as caught:
        Ledger.open(url)
    assert "secret" not in str(caught.value)


def test_the_error_of_an_unreachable_ledger_hides_its_address(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="Opening the ledger failed") as caught:
        Ledger.open("postgresql://user:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value)
    (tmp_path / "ledger").write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match="file is not a database"):
        Ledger.open(f"sqlite:///{tmp_path}/ledger")


def test_a_time_selects_the_same_snapshot_in_every_collation(postgres: str) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE in_english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C.UTF-8'"
        )
    states = States(
        make_url(postgres).set(database="in_english").render_as_string(hide_password=False)
    )
    for batch, moment in enumerate(
        (NOON - timedelta(minutes=1), NOON + timedelta(milliseconds=500))
    ):
        states.ledger.snapshots.publish(make_snapshot(batch, published_at=moment))
    at_noon = states.ledger.snapshots.at("orders", NOON)
    assert at_noon is not None
    assert at_noon.batch == 0
    assert [snapshot.batch for snapshot in states.ledger.snapshots.since(NOON)] == [1]


def test_only_the_lease_s_holder_registers_a_job(states: States) -> None:
    leases, holder = states.ledger.leases, Holder(host="h", pid=1, process="")
    first = leases.take(states.ref, holder, None)
    assert first is not None
    states.ledger.generations.register(states.info(description="first"), epoch=first.epoch)
    assert leases.take(states.ref, holder, first) is not None
    with pytest.raises(LeaseError):
        states.ledger.generations.register(states.info(description="too late"), epoch=first.epoch)
    assert description(states) == "first"


def test_no_two_leases_have_the_same_epoch(states: States) -> None:
    """Even if the ledger has lost the first of them."""
    leases, holder = states.ledger.leases, Holder(host="h", pid=1, process="")
    first = leases.take(states.ref, holder, None)
    with transaction(states.ledger.engine) as connection:
        connection.execute(delete(LEASES))
    second = leases.take(states.ref, holder, None)
    assert first is not None
    assert second is not None
    assert first.epoch != second.epoch
    assert leases.outrank(second, 5 << 40).epoch > 5 << 40
    with pytest.raises(LeaseError, match="no longer"):
        leases.outrank(first, 0)


@pytest.mark.fault("F50", "the ledger loses a batch that a driver has published")
@pytest.mark.parametrize("known", [None, 0])
def test_a_batch_whose_predecessor_the_ledger_has_lost_is_refused(
    states: States, known: int | None
) -> None:
    lease = states.ledger.leases.take(states.ref, Holder(host="h", pid=1, process=""), None)
    assert lease is not None
    if known is not None:
        states.ledger.snapshots.publish(make_snapshot(known))
    newest = "has no snapshot" if known is None else "ends at snapshot 1.0"
    with pytest.raises(WentBack, match=rf"{newest} of orders, but 1\.2 was published"):
        states.ledger.plans.add(states.ref, PlannedBatch(number=3, begun=1), lease.epoch)
    with pytest.raises(WentBack, match=rf"{newest} of orders, but 1\.2 was published"):
        states.ledger.snapshots.publish(make_snapshot(3), make_audit(3, lease.epoch))


def test_a_dropped_generation_s_number_and_lease_are_never_used_again(states: States) -> None:
    generations, leases, holder = (
        states.ledger.generations,
        states.ledger.leases,
        Holder(host="h", pid=1, process=""),
    )
    mine = leases.take(states.ref, holder, None)
    assert mine is not None
    dropped = generations.new("orders")
    assert dropped.generation == 2
    lease = leases.take(dropped, holder, None)
    assert lease is not None
    generations.register(
        msgspec.structs.replace(states.info(), generation=dropped.generation), hidden=True
    )
    generations.forget(dropped, mine)
    assert not leases.renew(lease)
    assert generations.numbers("orders") == [1]
    assert generations.new("orders").generation == 3


def test_a_driver_that_lost_its_lease_drops_no_generation(states: States) -> None:
    generations, leases, holder = (
        states.ledger.generations,
        states.ledger.leases,
        Holder(host="h", pid=1, process=""),
    )
    lost = leases.take(states.ref, holder, None)
    assert lost is not None
    leases.take(states.ref, holder, lost)
    generations.register(msgspec.structs.replace(states.info(), generation=2), hidden=True)
    with pytest.raises(LeaseError):
        generations.forget(GenerationRef("orders", 2), lost)
    assert generations.numbers("orders") == [1, 2]


READ_EVERY_SECOND: dict[str, Callable[[Ledger], object]] = {
    "the newest snapshot": lambda ledger: ledger.snapshots.latest("orders"),
    "the newest snapshots of all pipelines": lambda ledger: ledger.snapshots.of_all_pipelines(),
    "positions": lambda ledger: ledger.positions("orders"),
    "the newest audit": lambda ledger: ledger.audits.newest(GenerationRef("orders", 1)),
}


def test_what_is_read_every_second_takes_as_long_with_many_snapshots(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}", workers=1)
    states.publish({"a": "[1,2]"})
    with_one = {name: steps(states.ledger, read) for name, read in READ_EVERY_SECOND.items()}
    lease = states.ledger.leases.take(states.ref, Holder(host="h", pid=1, process=""), None)
    assert lease is not None
    for batch in range(1, 200):
        states.ledger.snapshots.publish(make_snapshot(batch), make_audit(batch, lease.epoch))
    with_many = {name: steps(states.ledger, read) for name, read in READ_EVERY_SECOND.items()}
    assert {
        name: count for name, count in with_many.items() if count > 2 * with_one[name] + 20
    } == {}


def steps(ledger: Ledger, read: Callable[[Ledger], object]) -> int:
    """The number of instructions that SQLite executes for a read, in tens."""
    count = 0

    def note() -> None:
        nonlocal count
        count += 1

    with ledger.engine.connect() as connection:
        connection.connection.driver_connection.set_progress_handler(note, 10)  # type: ignore[union-attr]
    read(ledger)
    assert count, "the engine has used another connection"
    return count


def test_a_process_compiles_a_statement_once_for_all_of_its_sqlite_ledgers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(folder: str) -> list[str]:
        with Ledger.open(f"sqlite:///{tmp_path / folder / 'ledger.db'}") as ledger:
            assert type(ledger.engine.dialect) is type(create_engine("sqlite://").dialect)
            return ledger.generations.pipelines()

    for folder in (
        "first",
        "second",
        "first",
    ):  # a new ledger is opened by other statements than an existing one
        read(folder)
    compiled: list[object] = []
    compile_sql = SQLCompiler.__init__

    def count(self: SQLCompiler, *arguments: Any, **more: Any) -> None:
        compiled.append(arguments)
        compile_sql(self, *arguments, **more)

    monkeypatch.setattr(SQLCompiler, "__init__", count)
    assert read("second") == []
    assert compiled == []
