"""Standbys answer in place of workers whose state servers are gone, from the same snapshot or not at all."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from sluice.commands.cli import app
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.engine.run.standby_upkeep import promote_standbys
from sluice.errors import DamagedState, LeaseError, NotFound, Refused, StateError, Unreachable
from sluice.operations.moves import move
from sluice.operations.snapshot_retention import retain
from sluice.query import workers
from sluice.settings import settings
from sluice.state.ledger.placement import Placement
from sluice.state.remote import remote_shard, standby_copies
from sluice.state.remote.opening import open_shard
from sluice.state.remote.remote_shard import RemoteShard
from sluice.state.remote.standby_copies import (
    FailedRefresh,
    RefreshedCopy,
    promote_standby,
    refresh_standbys,
)
from sluice.state.shard.operator_states import State
from tests.api.states import totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import Host
from tests.servers.test_hosts import COUNT, ContinuousQueries, counts, of_worker
from tests.support.leases import NEWEST_EPOCH
from tests.support.state_rows import write_rows
from tests.support.states import NOON, States, make_audit, make_snapshot

KEYS = ["k0", "k1", "k2"]
ALL = {location: number + 1 for number, location in enumerate(LOCATIONS)}


@contextmanager
def lease_epoch(states: States) -> Iterator[int]:
    with current_lease(states.ledger, "orders", this_process("")) as lease:
        yield lease.epoch


def refreshed(states: States, *, only_behind: bool = False) -> list[RefreshedCopy]:
    """Refresh the standbys. Raises the error of a standby that is not refreshed."""
    with lease_epoch(states) as epoch:
        every = [*refresh_standbys(states.ledger, states.ref, epoch, only_behind=only_behind)]
    for done in every:
        if isinstance(done, FailedRefresh):
            raise done.error
    return [done for done in every if isinstance(done, RefreshedCopy)]


def promoted(states: States, number: int = 1, *, accept_stale: bool = False) -> str:
    with lease_epoch(states) as epoch:
        return promote_standby(
            states.ledger, states.ref, number, epoch, why="A test.", accept_stale=accept_stale
        )


@pytest.fixture
def standby(hosts: list[Host], states: States) -> Path:
    """The third host has a standby of worker 1, which is on the second host.

    Returns the copy's file.
    """
    states.ledger.standbys.add(Placement("orders", 1, "127.0.0.1", hosts[2].port))
    refreshed(states)
    (copy,) = hosts[2].folder.rglob("worker-1.sqlite")
    return copy


def one(host: Host, **parameters: str) -> dict[str, object]:
    return host.get(f"{COUNT}/keys/{of_worker(1)}", **parameters).json()  # type: ignore[no-any-return]


@pytest.mark.fault(
    "F36", "a worker's state server stops; its standby answers from the same snapshot"
)
@pytest.mark.usefixtures("standby")
def test_a_standby_answers_when_the_worker_is_gone(hosts: list[Host], states: States) -> None:
    whole = hosts[0].get(COUNT, limit=50)
    assert ("standby" in whole.json(), "X-Sluice-Standby" in whole.headers) == (False, False)
    hosts[1].stop()
    answer = hosts[0].get(
        COUNT, limit=60
    )  # the complete answer to the first request is cached for a second
    page = answer.json()
    assert page["entries"] == whole.json()["entries"]
    assert (page["partial"], page["standby"], page["snapshot"]["id"]) == (False, True, "1.0")
    assert page["workers"][1]["standby"] is True
    assert "cannot be reached" in page["workers"][1]["reason"]
    assert [worker["number"] for worker in page["workers"] if worker.get("standby")] == [1]
    headers = answer.headers
    assert (headers["X-Sluice-Partial"], headers["X-Sluice-Standby"], "ETag" in headers) == (
        "false",
        "1",
        False,
    )
    assert one(hosts[0])["standby"] is True
    assert hosts[0].get(COUNT, require="complete").status_code == 200
    assert hosts[0].get(f"{COUNT}/diff", before="1.0").json()["same"] == len(page["entries"])
    own = hosts[0].get("/v1/orders/count/general_orders")
    assert (counts(own), own.headers["X-Sluice-Standby"]) == (ALL, "1")
    # The host with the standby reads its own copy.
    hosts[2].calls.clear()
    assert one(hosts[2])["standby"] is True
    assert hosts[2].queries == 0
    # A global table is read from another worker rather than from a standby.
    assert "standby" not in hosts[0].get("/sluice/v1/stores/stores/keys/store_1").json()

    workers = hosts[0].get("/sluice/v1/pipelines/orders/workers").json()
    assert [worker["status"] for worker in workers] == ["ok", "degraded", "ok", "ok"]
    assert workers[1]["standby"] == {"host": "127.0.0.1", "port": hosts[2].port, "snapshot": "1.0"}

    hosts[1].start()
    wait_for_primary(hosts[0])


def wait_for_primary(host: Host) -> None:
    deadline = time.monotonic() + 5
    while "standby" in one(host):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.usefixtures("standby")
def test_a_lookup_does_not_wait_long_for_a_silent_server(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LOOKUP_SECONDS", 0.2)
    expected = one(hosts[0])["entries"]
    hosts[1].stop()
    with socket.create_server(
        ("127.0.0.1", hosts[1].port)
    ):  # accepts connections, but never answers
        begun = time.monotonic()
        answer = one(hosts[0])
        assert time.monotonic() - begun < workers.WORKER_SECONDS / 3
    assert (answer["entries"], answer["standby"], answer["partial"]) == (expected, True, False)
    assert "Timed out after 0.2 s" in str(answer["workers"])


@pytest.mark.fault("F36", "a worker's state server stops during queries")
@pytest.mark.usefixtures("standby")
def test_queries_stay_complete_while_a_server_stops_and_starts(
    hosts: list[Host], states: States
) -> None:
    with ContinuousQueries(hosts[0]) as asking:
        hosts[1].stop()
        for _ in range(5):
            assert counts(hosts[0].get("/v1/orders/count/general_orders")) == ALL
        hosts[1].start()
        assert counts(hosts[0].get("/v1/orders/count/general_orders")) == ALL
    assert (asking.wrong, asking.looks > 3) == ([], True)


@pytest.mark.usefixtures("standby")
def test_an_older_standby_answers_only_for_the_snapshots_that_it_has(
    hosts: list[Host], states: States
) -> None:
    states.publish(totals("general", {of_worker(1): (100, "1.00"), of_worker(2): (200, "1.00")}))
    hosts[1].stop()
    page = hosts[0].get(COUNT, limit=50).json()
    assert (page["partial"], page.get("standby"), page["snapshot"]["id"]) == (True, None, "1.1")
    assert page["workers"][1]["reason"].endswith(
        "Its standby only has batches up to 0: read as_of=standby."
    )
    assert hosts[0].get(f"{COUNT}/keys/{of_worker(1)}").status_code == 503
    # Every worker answers from the standbys' snapshot.
    for as_of in ("standby", "1.0"):
        older = hosts[0].get(COUNT, limit=50, as_of=as_of).json()
        assert (older["partial"], older["standby"], older["snapshot"]["id"]) == (False, True, "1.0")
        assert {entry["key"]: entry["value"] for entry in older["entries"]} == ALL
    assert older["snapshot"]["age_seconds"] > 0


def test_as_of_standby_needs_copies(hosts: list[Host], states: States) -> None:
    assert "has no standbys" in hosts[0].get(COUNT, as_of="standby").json()["detail"]
    states.ledger.standbys.add(Placement("orders", 1, "127.0.0.1", hosts[2].port))
    answer = hosts[0].get(COUNT, as_of="standby")
    assert (answer.status_code, answer.json()["detail"][:20]) == (404, "1 of the standbys of")


def test_a_refresh_copies_only_new_versions(
    hosts: list[Host], states: States, standby: Path
) -> None:
    assert [(done.batch, done.copied) for done in refreshed(states)] == [(0, 0)]
    assert refreshed(states, only_behind=True) == []
    with open_shard(states.written_at[1], to_write=True) as shard:
        for batch in (1, 2, 3):
            before = shard.read_states(0, KEYS, batch, 0)
            old = {key: before[key].version if key in before else None for key in KEYS}
            shard.write_states(
                batch, [0], [State(0, key, b"%d" % batch, replaces=old[key]) for key in KEYS], 0
            )
            states.publish(totals("general", {of_worker(1): (100 + batch, "1.00")}))
        # A driver that stopped before it published has left a batch behind.
        write_rows(shard, 4, [(0, "unpublished", -1, -1, "[1]")])
    assert [(done.batch, done.why_whole) for done in refreshed(states, only_behind=True)] == [
        (3, "")
    ]
    hosts[1].stop()
    assert one(hosts[0])["entries"][0]["value"] == 103  # type: ignore[index]
    for batch, value in enumerate((of_worker(1), 101, 102, 103)):
        wanted = value if batch else ALL[of_worker(1)]
        assert one(hosts[0], as_of=f"1.{batch}")["entries"][0]["value"] == wanted  # type: ignore[index]
    rows = (
        sqlite3.connect(standby)
        .execute("SELECT count(*) FROM state_rows WHERE batch > 3")
        .fetchone()
    )
    assert rows == (0,)


def test_old_versions_are_removed_from_a_standby_too(
    hosts: list[Host], states: States, standby: Path
) -> None:
    for number in range(3):
        states.publish(totals("general", dict.fromkeys(LOCATIONS, (number, "0.00"))))
    refreshed(states)
    before = sqlite3.connect(standby).execute("SELECT count(*) FROM state_rows").fetchone()[0]
    done = retain(
        states.ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON.replace(year=2030)
    )
    assert done.failed == {}
    after = sqlite3.connect(standby).execute("SELECT count(*) FROM state_rows").fetchone()[0]
    assert after < before
    refreshed(states)  # the copy still matches the checksums
    hosts[1].stop()
    assert one(hosts[0])["entries"][0]["value"] == 2  # type: ignore[index]


@pytest.mark.fault("F36", "a refresh is interrupted, and repeated")
@pytest.mark.parametrize("broken", ["absorb_rows", "replace_journal", "verify_rows"])
def test_an_interrupted_refresh_can_be_repeated(
    hosts: list[Host], states: States, standby: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.publish(totals("general", {of_worker(1): (100, "1.00")}))
    with monkeypatch.context() as patch:
        patch.setattr(RemoteShard, broken, cut_off)
        with pytest.raises(StateError, match="cut off"):
            refreshed(states)
    held = states.ledger.standbys.of("orders")[1]
    assert (held.copied_generation, held.batch) == (states.ref, 0)
    assert [(done.batch, done.why_whole) for done in refreshed(states)] == [(1, "")]
    hosts[1].stop()
    assert one(hosts[0])["entries"][0]["value"] == 100  # type: ignore[index]


def cut_off(*_: object) -> None:
    raise StateError("The network was cut off.")


def test_a_copy_that_is_not_complete_gives_no_answers(
    hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    states.ledger.standbys.add(Placement("orders", 1, "127.0.0.1", hosts[2].port))
    with monkeypatch.context() as patch:
        patch.setattr(RemoteShard, "replace_journal", cut_off)
        with pytest.raises(StateError, match="cut off"):
            refreshed(states)
    with lease_epoch(states) as epoch:
        standby = states.ledger.standbys.of("orders")[1]
        states.ledger.standbys.record_copy(
            standby, states.ref, 0, epoch
        )  # as a reader with an old placement sees it
    hosts[1].stop()
    page = hosts[0].get(COUNT).json()
    assert page["partial"]
    assert page["workers"][1]["reason"].endswith(
        "Its standby: The copy of the shard is not complete yet."
    )


@pytest.mark.fault(
    "F36", "a digit of a standby's copy is changed, or its file is truncated or lost"
)
@pytest.mark.parametrize("damage", ["digit", "deleted row", "truncated", "lost"])
def test_a_damaged_copy_is_noticed_and_replaced(
    hosts: list[Host], states: States, standby: Path, damage: str
) -> None:
    if damage == "lost":
        standby.unlink()
    elif damage == "truncated":
        standby.write_bytes(standby.read_bytes()[:5_000])
    else:
        with sqlite3.connect(standby) as connection:
            row = f"key = '{of_worker(1)}'"
            change = f"UPDATE state_rows SET value = '[777]' WHERE {row}"
            connection.execute(
                change if damage == "digit" else f"DELETE FROM state_rows WHERE {row}"
            )
        connection.close()
    hosts[1].stop()
    with pytest.raises(DamagedState, match="The standby of worker 1 is damaged, too"):
        promoted(states)
    assert states.ledger.placements.of("orders")[1].port == hosts[1].port
    hosts[1].start()
    (done,) = refreshed(states)
    assert (done.batch, bool(done.why_whole), done.copied > 0) == (0, True, True)
    hosts[1].stop()
    assert one(hosts[0])["entries"][0]["value"] == ALL[of_worker(1)]  # type: ignore[index]


@pytest.mark.fault("F36", "one of two standbys' servers stops")
def test_a_standby_that_is_gone_does_not_hold_up_the_others(
    hosts: list[Host],
    states: States,
    standby: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    states.ledger.standbys.add(Placement("orders", 3, "127.0.0.1", hosts[1].port))
    refreshed(states)
    states.publish(totals("general", {of_worker(1): (100, "1.00"), of_worker(3): (200, "1.00")}))
    hosts[2].stop()
    with lease_epoch(states) as epoch:
        first, second = refresh_standbys(states.ledger, states.ref, epoch)
    assert isinstance(first, FailedRefresh)
    assert (first.worker, f"{hosts[2].address} cannot be reached" in str(first.error)) == (1, True)
    assert isinstance(second, RefreshedCopy)
    assert (second.worker, second.batch) == (3, 1)
    monkeypatch.setenv("SLUICE_LEDGER", f"sqlite:///{tmp_path}/ledger.sqlite")
    settings.cache_clear()
    result = CliRunner().invoke(app, ["standby", "refresh", "orders"])
    assert (result.exit_code, "Worker 3's standby has snapshot 1.1" in result.output) == (1, True)
    assert f"{hosts[2].address} cannot be reached" in result.output


@pytest.mark.fault(
    "F36", "a state server that is paused: it accepts connections, but never answers"
)
def test_a_silent_server_is_given_up(standby: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_shard, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            Unreachable, match=rf"at 127\.0\.0\.1:{port} cannot be reached \(ReadTimeout\)"
        ):
            open_shard(f"http://127.0.0.1:{port}/local/orders/1/1")


@pytest.mark.fault(
    "F36", "a worker's own shard is damaged or replaced by an older one before a refresh"
)
@pytest.mark.parametrize("damage", ["altered row", "older"])
def test_a_damaged_shard_does_not_replace_its_copy(
    hosts: list[Host], states: States, standby: Path, damage: str
) -> None:
    publish_audited(states, 50)
    refreshed(states)
    publish_audited(states, 100)
    if damage == "older":
        refreshed(states)
    (shard,) = hosts[1].folder.rglob("worker-1.sqlite")
    with sqlite3.connect(shard) as connection:
        if damage == "older":
            connection.execute("DELETE FROM state_rows WHERE batch = 2")
            connection.execute("DELETE FROM batches WHERE batch = 2")
        else:
            connection.execute("UPDATE state_rows SET value = '[777]' WHERE batch = 2")
    connection.close()
    with pytest.raises(
        DamagedState, match=r"Worker 1's shard is damaged: .*copy is kept"
    ) as caught:
        refreshed(states)
    assert caught.value.workers.keys() == {1}
    held = 2 if damage == "older" else 1
    assert states.ledger.standbys.of("orders")[1].batch == held
    if damage == "older":
        promoted(states)
        with open_shard(states.written_at[1], to_write=True) as copy:
            audit = states.ledger.audits.newest(states.ref)
            assert audit is not None
            assert copy.begin_run(NEWEST_EPOCH, 2) == audit.published_checksums(1)
    else:
        hosts[1].stop()
        assert one(hosts[0], as_of="standby")["entries"][0]["value"] == 50  # type: ignore[index]


def publish_audited(states: States, value: int) -> None:
    """Publish a value of worker 1's key, with the checksums of all shards."""
    states.batch += 1
    checksums = {}
    with lease_epoch(states) as epoch:
        for number, place in enumerate(states.written_at):
            rows = [(0, of_worker(1), -1, -1, f"[{value}]")] if number == 1 else []
            with open_shard(place, to_write=True) as shard:
                write_rows(shard, states.batch, rows, epoch)
                checksums[str(number)] = shard.checksums(states.batch)
        audit = msgspec.structs.replace(
            make_audit(states.batch, epoch),
            checksums={number: of_shard.state_rows for number, of_shard in checksums.items()},
            states={number: of_shard.states for number, of_shard in checksums.items()},
        )
        assert states.ledger.snapshots.publish(make_snapshot(states.batch), audit)


@pytest.mark.usefixtures("standby")
def test_a_standby_of_a_worker_that_no_longer_exists_is_ignored(
    hosts: list[Host], states: States
) -> None:
    states.ledger.standbys.add(Placement("orders", 9, "127.0.0.1", hosts[2].port))
    assert hosts[0].get(COUNT, limit=50, as_of="standby").json()["snapshot"]["id"] == "1.0"
    assert [done.worker for done in refreshed(states)] == [1]


@pytest.mark.fault("F36", "a standby is promoted, and the old server comes back")
def test_a_promoted_standby_takes_the_place_of_the_worker(
    hosts: list[Host], states: States, standby: Path
) -> None:
    with open_shard(f"sqlite:///{standby}", to_write=True) as copy, pytest.raises(Refused):
        write_rows(copy, 1, [], 10**6)  # a standby accepts no batch
    hosts[1].stop()
    old = states.written_at[1]
    assert f"the standby at 127.0.0.1:{hosts[2].port}, which had snapshot 1.0" in promoted(states)
    assert "took the place" in states.ledger.notes.all("orders")[-1].text
    states.publish(totals("general", {of_worker(1): (100, "1.00")}))
    hosts[1].start()
    answer = hosts[0].get("/v1/orders/count/general_orders")
    assert counts(answer) == ALL | {of_worker(1): 100}
    assert "X-Sluice-Standby" not in answer.headers
    assert (
        hosts[0].get(f"/v1/metadata/general_orders/{of_worker(1)}").json()["port"] == hosts[2].port
    )
    # The old server serves its shard to nobody, however new the writer's lease is.
    with pytest.raises(Refused, match="not at this server"):
        open_shard(old)
    with pytest.raises(Refused, match=r"is at 127\.0\.0\.1"):
        states.ledger.placements.claim(Placement("orders", 1, "127.0.0.1", hosts[1].port))
    assert states.ledger.standbys.of("orders") == {}


def test_a_promotion_fences_the_driver_that_worked_before(
    hosts: list[Host], states: States, standby: Path
) -> None:
    with current_lease(states.ledger, "orders", this_process("")) as lease:
        before, copy = lease.row, states.ledger.standbys.of("orders")[1]
    promoted(states)
    with pytest.raises(LeaseError), lease_epoch(states):
        states.ledger.standbys.record_copy(copy, states.ref, 0, before.epoch)
    with open_shard(states.written_at[1], to_write=True) as shard:
        shard.begin_run(before.epoch + 2, 0)
        with pytest.raises(LeaseError):
            write_rows(shard, 1, [], before.epoch)


@pytest.mark.fault("F36", "a stale standby")
def test_a_stale_standby_is_not_promoted_silently(
    hosts: list[Host], states: States, standby: Path
) -> None:
    states.publish(totals("general", {of_worker(1): (100, "1.00")}))
    hosts[1].stop()
    with pytest.raises(Refused, match=r"has snapshot 1\.0, but 1\.1 is published"):
        promoted(states)
    assert states.ledger.placements.of("orders")[1].port == hosts[1].port
    # Accepted as stale, it is quarantined until a run has restored the state: no query reads its
    # old rows.
    promoted(states, accept_stale=True)
    assert states.ledger.placements.of("orders")[1].port == hosts[2].port
    page = hosts[0].get(COUNT, limit=50).json()
    assert page["partial"]
    assert (
        page["workers"][1]["reason"] == "The standby that took the worker's place had snapshot 1.0."
    )
    assert hosts[0].get(f"{COUNT}/keys/{of_worker(1)}").status_code == 503


def test_a_run_promotes_the_standby_of_an_unreachable_worker(
    hosts: list[Host], states: States, standby: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_copies, "RETRY_SECONDS", 0.3)
    gone, orders = Unreachable("It does not answer."), ("orders", "")
    # The server answers again: nothing is promoted.
    assert promote_standbys(states.ledger, *orders, gone) == ""
    assert states.ledger.placements.of("orders")[1].port == hosts[1].port
    hosts[1].stop()
    assert promote_standbys(states.ledger, *orders, gone) == ""
    assert states.ledger.placements.of("orders")[1].port == hosts[2].port
    assert states.ledger.notes.all("orders")[-1].text.endswith("It does not answer.")
    assert promote_standbys(states.ledger, *orders, gone) == "There is no standby."


def test_a_run_promotes_the_standby_of_a_damaged_shard(
    hosts: list[Host], states: States, standby: Path
) -> None:
    states.ledger.quarantine.add(states.ref, 1, "A row was altered.")
    assert one(hosts[0])["standby"] is True
    damaged = DamagedState("Worker 1's shard is damaged.", workers={1: "there"})
    assert promote_standbys(states.ledger, "orders", "", damaged) == ""
    assert states.ledger.quarantine.get(states.ref) == {}
    damaged = DamagedState("Worker 2's shard is damaged.", workers={2: "there"})
    states.ledger.standbys.add(Placement("orders", 3, "127.0.0.1", hosts[1].port))
    assert (
        promote_standbys(states.ledger, "orders", "", damaged)
        == "Worker 2 of 'orders' has no standby. "
        "Look for the workers with standbys in: sluice workers orders."
    )
    with open_shard(states.written_at[1], to_write=True) as shard:
        assert shard.begin_run(10**6, 0) == shard.checksums(0)


def test_the_commands_add_refresh_promote_and_remove(
    hosts: list[Host], states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER", f"sqlite:///{tmp_path}/ledger.sqlite")
    settings.cache_clear()

    def command(*words: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(word) for word in words])
        return result.exit_code, result.output

    for words in (("workers",), ("standby", "refresh"), ("standby", "promote")):
        status, output = command(*words, "other", *([1] if "promote" in words else []))
        assert (status, "The ledger has no pipeline 'other'" in output) == (1, True), output
    status, output = command("standby", "refresh", "orders")
    assert (status, "has no standbys" in output) == (1, True), output
    with lease_epoch(states):  # a run is in progress
        status, output = command("standby", "add", "orders", 1, hosts[0].address)
        assert (status, "A run makes the first copy" in output) == (0, True), output
    for number in (1, 2):
        status, output = command("standby", "add", "orders", number, hosts[0].address)
        assert (status, f"Worker {number}'s standby has snapshot 1.0; " in output) == (0, True), (
            output
        )
    assert f"{hosts[0].address}, snapshot 1.0" in command("workers", "orders")[1]
    states.publish(totals("general", {of_worker(2): (100, "1.00")}))
    assert (
        "Worker 1's standby has snapshot 1.1; 0 versions copied"
        in command("standby", "refresh", "orders")[1]
    )
    hosts[1].stop()
    assert command("standby", "promote", "orders", 1)[0] == 0
    assert states.ledger.placements.of("orders")[1].port == hosts[0].port
    assert command("standby", "remove", "orders", 2)[0] == 0
    assert (command("standby", "remove", "orders", 2)[0], states.ledger.standbys.of("orders")) == (
        1,
        {},
    )
    assert [file.name for file in hosts[0].folder.rglob("worker-[12].sqlite")] == [
        "worker-1.sqlite"
    ]
    status, output = command("standby", "add", "orders", 7, hosts[0].address)
    assert (status, "has no worker 7" in output) == (1, True)


def test_a_server_with_the_workers_own_folder_is_no_standby(
    hosts: list[Host], states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER", f"sqlite:///{tmp_path}/ledger.sqlite")
    settings.cache_clear()
    twin = Host(states.ledger, hosts[1].folder).start()
    result = CliRunner().invoke(app, ["standby", "add", "orders", "1", twin.address])
    twin.stop()
    assert (result.exit_code, "already has a shard here" in result.output) == (1, True), (
        result.output
    )
    assert states.ledger.standbys.of("orders") == {}
    assert counts(hosts[0].get("/v1/orders/count/general_orders")) == ALL


@pytest.mark.attack("S10", "a server that is a worker's standby claims it, or takes it by a move")
def test_standbys_and_workers_have_different_servers(
    hosts: list[Host], states: States, standby: Path
) -> None:
    with pytest.raises(Refused, match="is the standby"):
        move(states.ledger, Placement("orders", 1, "127.0.0.1", hosts[2].port))
    states.ledger.standbys.add(Placement("orders", 2, "127.0.0.1", hosts[0].port))
    with pytest.raises(Refused, match="must be at another state server"):
        states.ledger.standbys.add(Placement("orders", 1, "127.0.0.1", hosts[1].port))
    with pytest.raises(Refused, match="has a standby at"):
        states.ledger.standbys.add(Placement("orders", 1, "127.0.0.1", hosts[0].port))
    states.ledger.placements.clear()
    assert states.ledger.standbys.of("orders") == {}
    states.ledger.standbys.add(Placement("orders", 1, "127.0.0.1", hosts[2].port))
    with pytest.raises(Refused, match="This server is the standby of worker 1"):
        states.ledger.placements.claim(Placement("orders", 1, "127.0.0.1", hosts[2].port))
    with pytest.raises(NotFound, match="has no standby"):
        promoted(states, 3)
