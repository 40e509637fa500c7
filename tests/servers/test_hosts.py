"""Queries over several hosts give the right results with as few calls as possible."""

from __future__ import annotations

import socket
import threading
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from sluice.commands.cli import app
from sluice.commands.worker_arguments import place_of
from sluice.errors import NotFound, Refused, StateError
from sluice.operations.moves import move
from sluice.operations.snapshot_retention import retain
from sluice.operations.state_growth import note_size
from sluice.query import workers
from sluice.server import served_shards
from sluice.server.state_server import ServerOptions, claim
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.remote.opening import open_shard
from sluice.state.shard.ranges import RowRange
from sluice.values.key_owners import owner
from tests.api.states import totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import Host, placed
from tests.support.ports import free_port
from tests.support.state_rows import write_rows
from tests.support.states import NOON, States, ledger_url

COUNT = "/sluice/v1/stores/general_orders_count"


def of_worker(number: int) -> str:
    """A location that the worker owns."""
    return next(location for location in LOCATIONS if owner(location, 4) == number)


def counts(answer: httpx.Response) -> dict[str, int]:
    return {row["locationId"]: row["orderCount"] for row in answer.json()}


def test_shards_are_on_the_hosts_of_their_workers(hosts: list[Host], states: States) -> None:
    results = [sorted(path.stem for path in host.folder.rglob("*.sqlite")) for host in hosts]
    assert results == [["worker-0", "worker-3"], ["worker-1"], ["worker-2"]]


def test_the_size_of_the_state_includes_the_shards_of_all_hosts(
    hosts: list[Host], states: States
) -> None:
    today = date(2026, 11, 21)
    note_size(states.ledger, "orders", today)
    shards = [
        file
        for host in hosts
        for file in host.folder.rglob("*.sqlite*")
        if not file.name.endswith("-shm")
    ]
    assert states.ledger.sizes.of("orders") == [sum(file.stat().st_size for file in shards)]
    hosts[1].stop()
    # Without the shard of a host that is away, the state would seem to shrink.
    note_size(states.ledger, "orders", today + timedelta(days=1))
    assert len(states.ledger.sizes.of("orders")) == 1


def test_every_host_answers_every_query(hosts: list[Host], states: States) -> None:
    for host in hosts:
        assert counts(host.get("/v1/orders/count/general_orders")) == {
            location: number + 1 for number, location in enumerate(LOCATIONS)
        }
        one = host.get("/v1/orders/count/general_orders", location_id="store_7")
        assert one.json() == {"locationId": "store_7", "orderCount": 8}
        window = host.get("/v1/orders/windows/count/general_orders").json()
        assert [row["startWindow"] for row in window] == ["2022-12-05T08:55:15"]
        figures = host.get(f"{COUNT}/combine").json()["groups"]
        assert figures == [{"group": None, "entries": 40, "sum": 820, "min": 1, "max": 40}]
        top = host.get(f"{COUNT}/top", limit=2).json()["entries"]
        assert [entry["key"] for entry in top] == ["store_39", "store_38"]
        several = host.get(f"{COUNT}/keys?key=store_3&key=store_1&key=none").json()
        assert [(entry["key"], entry["value"]) for entry in several["entries"]] == [
            ("store_3", 4),
            ("store_1", 2),
        ]
        assert len(host.get(COUNT, limit=7).json()["entries"]) == 7


def test_a_host_can_answer_for_its_own_workers_only(hosts: list[Host], states: States) -> None:
    shares = [
        counts(host.get("/v1/orders/count/general_orders", query_other_hosts=False))
        for host in hosts
    ]
    assert [sorted({owner(location, 4) for location in share}) for share in shares] == [
        [0, 3],
        [1],
        [2],
    ]
    assert sum(map(len, shares)) == 40


def test_metadata_has_the_address_of_each_worker(hosts: list[Host], states: States) -> None:
    addresses = [{"host": "127.0.0.1", "port": host.port} for host in hosts]
    assert sorted(hosts[1].get("/v1/metadata/all").json(), key=str) == sorted(addresses, key=str)
    body = hosts[1].get(f"/v1/metadata/general_orders/{of_worker(2)}").json()
    assert body == addresses[2] | {"key": of_worker(2)}
    workers = hosts[0].get("/sluice/v1/pipelines/orders/workers").json()
    assert [(worker["number"], worker["port"]) for worker in workers] == [
        (0, hosts[0].port), (1, hosts[1].port), (2, hosts[2].port), (3, hosts[0].port),
    ]  # fmt: skip
    assert {worker["status"] for worker in workers} == {"ok"}
    assert "general_orders_count" in workers[0]["stores"]


def test_a_query_for_a_key_makes_at_most_one_call(hosts: list[Host], states: States) -> None:
    for asked in hosts:
        for location in LOCATIONS:
            for host in hosts:
                host.calls.clear()
            assert (
                asked.get("/v1/orders/count/general_orders", location_id=location).status_code
                == 200
            )
            has = {0: 0, 3: 0, 1: 1, 2: 2}[owner(location, 4)]
            expected = [int(number == has and hosts[has] is not asked) for number in range(3)]
            assert [host.queries for host in hosts] == expected
            others = [host for host in hosts if host is not asked]
            assert sum(sum(host.calls.values()) for host in others) == sum(expected)


def test_a_query_of_all_workers_makes_one_call_per_remote_worker(
    hosts: list[Host], states: States
) -> None:
    for host in hosts:
        host.calls.clear()
    hosts[1].get("/v1/orders/count/general_orders")
    assert [host.queries for host in hosts] == [2, 0, 1]


def test_a_global_table_is_read_without_a_call(hosts: list[Host], states: States) -> None:
    hosts[2].calls.clear()
    assert hosts[2].get("/sluice/v1/stores/stores/keys/store_1").status_code == 200
    assert sum(host.queries for host in hosts) == 0


def test_concurrent_queries_for_keys_share_calls(hosts: list[Host], states: States) -> None:
    own = [location for location in LOCATIONS if owner(location, 4) == 1]
    hosts[0].get("/v1/orders/count/general_orders", location_id=own[0])
    hosts[1].calls.clear()
    answers: dict[str, Any] = {}

    def ask(location: str) -> None:
        answers[location] = (
            hosts[0]
            .get("/v1/orders/count/general_orders", location_id=location)
            .json()["orderCount"]
        )

    threads = [threading.Thread(target=ask, args=(location,)) for location in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {location: LOCATIONS.index(location) + 1 for location in own}
    assert hosts[1].queries <= len(own)


@pytest.mark.fault("F12", "a worker's host down, and back")
def test_answers_are_partial_while_a_host_is_down(hosts: list[Host], states: States) -> None:
    hosts[1].stop()
    answer = hosts[0].get("/v1/orders/count/general_orders")
    assert set(counts(answer)) == {location for location in LOCATIONS if owner(location, 4) != 1}
    assert (answer.headers["X-Sluice-Partial"], answer.headers["X-Sluice-Unavailable"]) == (
        "true",
        "1",
    )
    assert "ETag" not in answer.headers
    page = hosts[0].get(COUNT).json()
    assert page["partial"]
    assert [worker["status"] for worker in page["workers"]] == ["ok", "unavailable", "ok", "ok"]
    assert "cannot be reached" in page["workers"][1]["reason"]
    complete = hosts[0].get(COUNT, require="complete")
    assert (complete.status_code, complete.json()["title"]) == (503, "Incomplete")
    gone = hosts[0].get("/v1/orders/count/general_orders", location_id=of_worker(1))
    assert (gone.status_code, gone.headers["Retry-After"]) == (503, "2")
    assert (
        hosts[0].get("/v1/orders/count/general_orders", location_id=of_worker(2)).status_code == 200
    )

    hosts[1].start()
    whole = hosts[0].get("/v1/orders/count/general_orders")
    assert (len(counts(whole)), whole.headers["X-Sluice-Partial"]) == (40, "false")


class ContinuousQueries(threading.Thread):
    """Queries all keys, and one key, continuously."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.host, self.looks, self.wrong, self.done = host, 0, [], threading.Event()  # type: ignore[var-annotated]

    def run(self) -> None:
        while not self.done.is_set():
            everything = self.host.get("/v1/orders/count/general_orders")
            one = self.host.get("/v1/orders/count/general_orders", location_id=of_worker(1))
            self.looks += 1
            if len(counts(everything)) != 40 or everything.headers["X-Sluice-Partial"] != "false":
                self.wrong.append(everything.headers)
            if one.status_code != 200:
                self.wrong.append(one.text)

    def __enter__(self) -> ContinuousQueries:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.join(20)


def test_a_worker_moves_to_another_host_during_queries(hosts: list[Host], states: States) -> None:
    with ContinuousQueries(hosts[0]) as asking:
        assert move(states.ledger, Placement("orders", 1, "127.0.0.1", hosts[2].port)) > 0
        states.publish(totals("general", {of_worker(1): (100, "1.00")}))
        deadline = threading.Event()
        for _ in range(100):
            if (
                hosts[0]
                .get("/v1/orders/count/general_orders", location_id=of_worker(1))
                .json()["orderCount"]
                == 100
            ):
                break
            deadline.wait(0.05)
    assert (asking.wrong, asking.looks > 3) == ([], True)
    assert (
        hosts[0].get("/v1/metadata/general_orders/" + of_worker(1)).json()["port"] == hosts[2].port
    )
    assert sorted(path.stem for path in hosts[2].folder.rglob("*.sqlite")) == [
        "worker-1",
        "worker-2",
    ]

    # The old shard is sealed, earlier snapshots have moved, too, and the worker can move back.
    (old,) = hosts[1].folder.rglob("*.sqlite")
    with (
        open_shard(f"sqlite:///{old}", to_write=True) as shard,
        pytest.raises(Refused, match="moved away"),
    ):
        write_rows(shard, 2, [])
    assert len(counts(hosts[1].get("/v1/orders/count/general_orders"))) == 40
    assert hosts[1].get(COUNT, as_of="1.0", require="complete").json()["snapshot"]["id"] == "1.0"
    move(states.ledger, Placement("orders", 1, "127.0.0.1", hosts[1].port))
    states.publish(totals("general", {of_worker(1): (101, "1.00")}))
    answer = hosts[1].get("/v1/orders/count/general_orders", location_id=of_worker(1))
    assert answer.json()["orderCount"] == 101


def test_windows_expire_on_every_host(states: States) -> None:
    with open_shard(states.written_at[owner("store_1", 4)], to_write=True) as shard:
        shard.expire_windows(1, {2: 2**62}, epoch=1)
        assert [len(shard.scan(2, as_of)) for as_of in (0, 1)] == [1, 0]
        shard.verify_rows(1)


def test_a_run_cannot_write_to_a_shard_that_has_moved(hosts: list[Host], states: States) -> None:
    with open_shard(states.written_at[1], to_write=True) as begun:
        write_rows(begun, 1, [(0, of_worker(1), -1, -1, "[1]")])
        move(states.ledger, Placement("orders", 1, "127.0.0.1", hosts[0].port))
        with pytest.raises(Refused, match="moved away"):
            write_rows(begun, 2, [])
    with open_shard(states.written_at[1]) as moved:
        assert [(entry.batch, entry.rows) for entry in moved.journal().batches][1:] == [(1, 1)]


def test_an_interrupted_move_can_be_repeated(
    hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Placement("orders", 1, "127.0.0.1", hosts[2].port)
    for broken in ("absorb_rows", "replace_journal"):
        with monkeypatch.context() as patch:
            from sluice.state.remote.remote_shard import RemoteShard

            patch.setattr(RemoteShard, broken, _fail)
            with pytest.raises(StateError, match="cut off"):
                move(states.ledger, place)
        assert states.ledger.placements.of("orders")[1].port == hosts[1].port
    assert len(counts(hosts[0].get("/v1/orders/count/general_orders"))) == 40
    move(states.ledger, place)
    assert states.ledger.placements.of("orders")[1].port == hosts[2].port
    assert len(counts(hosts[1].get("/v1/orders/count/general_orders"))) == 40
    assert move(states.ledger, place) == 0


def _fail(*_: object) -> None:
    raise StateError("The network was cut off.")


def test_a_local_shard_moves_to_a_server(hosts: list[Host], tmp_path: Path) -> None:
    ledger = ledger_url(f"sqlite:///{tmp_path}")
    local = States(f"sqlite:///{tmp_path}/local", pipeline="local", workers=2, ledger_at=ledger)
    local.publish({f"k{number}": f"[{number}]" for number in range(10)})
    with pytest.raises(Refused, match="its shard is not on this host"):
        claim(local.ledger, settings(), ServerOptions(1), "local", [0])
    for number in range(2):
        move(local.ledger, Placement("local", number, "127.0.0.1", hosts[number].port))
    assert {worker.port for worker in local.ledger.generations.workers("local")} == {
        hosts[0].port,
        hosts[1].port,
    }
    local.publish({"k3": "[33]"})
    with open_shard(local.ledger.generations.workers("local")[owner("k3", 2)].location) as shard:
        assert [row.value for row in shard.scan(0, 1, RowRange.of_key("k3"))] == ["[33]"]


def test_retention_reaches_shards_on_other_hosts(hosts: list[Host], states: States) -> None:
    only_one = retain(
        states.ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON.replace(year=2030)
    )
    assert (only_one.snapshots, only_one.versions, only_one.failed) == (0, 0, {})
    for number in range(3):
        states.publish(totals("general", dict.fromkeys(LOCATIONS, (number, "0.00"))))
    done = retain(
        states.ledger, "orders", keep_snapshots=1, keep_seconds=0, now=NOON.replace(year=2030)
    )
    # The version before the newest is kept, because the newest batch may be written again.
    assert (done.snapshots, done.versions, done.failed) == (3, 2 * 40, {})


@pytest.mark.attack("S10", "a server that cannot start, and another program at its address")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "The server cannot listen on 127.0.0.1:"),
        (["--bind", "no-such-host.invalid"], "The server cannot listen on no-such-host.invalid:"),
        (
            ["--certificate", "garbage", "--key", "garbage"],
            "cannot read its certificate garbage and key garbage",
        ),
    ],
)
def test_a_server_that_does_not_start_gets_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], error: str
) -> None:
    """Readers send their token to the address of a worker."""
    monkeypatch.chdir(tmp_path)
    Path("garbage").write_text("garbage")
    ledger = f"sqlite:///{tmp_path}/ledger.sqlite"
    for name, value in {
        "SLUICE_LEDGER": ledger,
        "SLUICE_SERVER_TOKEN": "a token of many letters and digits",
    }.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] if not options else free_port()
        result = CliRunner().invoke(
            app, ["serve", "--pipeline", "orders", "--workers", "0", "--port", str(port), *options]
        )
    settings.cache_clear()
    assert (result.exit_code, error in " ".join(result.stderr.split())) == (1, True), result.stderr
    with Ledger.open(ledger) as opened:
        assert opened.placements.of("orders") == {}


@pytest.mark.attack("S10", "claiming a worker that another server has")
def test_a_worker_cannot_be_claimed_twice(hosts: list[Host], states: States) -> None:
    with pytest.raises(Refused, match=r"Worker 1 of 'orders' is at .* sluice move orders 1"):
        states.ledger.placements.claim(Placement("orders", 1, "127.0.0.1", 9))
    # The same server can claim the worker again after a restart.
    states.ledger.placements.claim(Placement("orders", 1, "127.0.0.1", hosts[1].port))


@pytest.mark.attack(
    "S10", "a server still asked for a worker that was moved to it, and then away again"
)
def test_a_server_stops_serving_a_worker_that_has_come_and_gone(
    hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_shards, "REFRESH_SECONDS", 0.1)
    there, back = (Placement("orders", 1, "127.0.0.1", hosts[number].port) for number in (2, 1))
    move(states.ledger, there)
    open_shard(there.shard(states.ref)).close()
    move(states.ledger, back)
    until = time.monotonic() + 10
    while is_served(there.shard(states.ref)):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert is_served(back.shard(states.ref))


def is_served(address: str) -> bool:
    try:
        open_shard(address).close()
    except Refused as error:
        return "not at this server" not in error.detail
    return True


def test_a_worker_without_state_is_moved_as_a_refusal_says(hosts: list[Host]) -> None:
    before, after = hosts[1].options.place("new", 0), hosts[2].options.place("new", 0)
    hosts[1].ledger.placements.claim(before)
    with pytest.raises(Refused, match="Worker 0 of 'new' is at") as error:
        hosts[2].ledger.placements.claim(after)
    _, _, command = error.value.next_step.partition("sluice move ")
    pipeline, worker, address = command.split()
    assert move(hosts[2].ledger, place_of(pipeline, int(worker), address, tls=False)) == 0
    hosts[2].ledger.placements.claim(after)


@pytest.mark.attack("S10", "a move to an address without a server, or with another server")
def test_a_move_needs_a_state_server(hosts: list[Host], states: States) -> None:
    with pytest.raises(StateError, match="No state server answers"):
        move(states.ledger, Placement("orders", 1, "127.0.0.1", 9))
    with pytest.raises(Refused, match="reports another address, 127"):
        move(states.ledger, Placement("orders", 1, "localhost", hosts[2].port))
    with pytest.raises(NotFound, match="no worker 4"):
        move(states.ledger, Placement("orders", 4, "127.0.0.1", hosts[2].port))


@pytest.fixture
def short_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORKER_SECONDS", 0.3)


def test_a_worker_that_hangs_is_unavailable_and_not_retried_at_once(
    hosts: list[Host], states: States, short_time_limit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket
    import time

    with socket.create_server(("127.0.0.1", 0)) as hanging:
        placed(states, Placement("orders", 1, "127.0.0.1", hanging.getsockname()[1]))
        time.sleep(1.1)
        monkeypatch.setattr(
            workers, "PAUSE_SECONDS", 60.0
        )  # longer than a busy machine needs for the next query
        page = hosts[0].get(COUNT).json()
        assert page["workers"][1]["reason"] == "Timed out after 0.3 s."
        assert (
            hosts[0].get(COUNT).json()["workers"][1]["reason"]
            == "Its state server timed out recently and gets no queries for 60 s."
        )
