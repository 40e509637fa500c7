"""State servers in separate network namespaces. Run by `make test-namespaces`, as root.

Not part of `make test`, because not every machine allows network namespaces.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.operations.moves import move
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.values.key_owners import owner
from tests.api.states import orders_states, totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import TOKEN, Host
from tests.servers.processes import ServerProcess, environment
from tests.support.postgres import postgres_server
from tests.support.states import ledger_url, make_snapshot

PORT = 7070
COUNT = "/v1/orders/count/general_orders"


class Namespace:
    """A network namespace with one address, connected to this machine by a pair of virtual interfaces."""

    def __init__(self, number: int) -> None:
        self.name = f"sluice-{number}"
        self.inner, self.outer = f"10.231.{number}.2", f"10.231.{number}.1"
        self._cable = f"sluice{number}"

    def __enter__(self) -> Namespace:
        ends = (f"{self._cable}a", f"{self._cable}b")
        _ip("netns", "add", self.name)
        _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", self.name)
        _ip("addr", "add", f"{self.outer}/24", "dev", ends[0])
        _ip("link", "set", ends[0], "up")
        _ip("-n", self.name, "addr", "add", f"{self.inner}/24", "dev", ends[1])
        _ip("-n", self.name, "link", "set", ends[1], "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        # Sockets with unsent data keep a namespace and its interface for minutes.
        _ip("link", "del", f"{self._cable}a")
        _ip("netns", "del", self.name)

    @property
    def inside(self) -> tuple[str, ...]:
        """The prefix of a command that runs in the namespace."""
        return "ip", "netns", "exec", self.name

    def unplug(self) -> None:
        """Unplug the cable: packets are lost without an error."""
        _ip("-n", self.name, "link", "set", f"{self._cable}b", "down")

    def plug_in(self) -> None:
        _ip("-n", self.name, "link", "set", f"{self._cable}b", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def namespaces() -> Iterator[list[Namespace]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Namespace(number)) for number in (1, 2, 3)]


ASK = """
import sys, time, urllib.error, urllib.request
began = time.monotonic()
request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"})
try:
    status = urllib.request.urlopen(request, timeout=60).status
except urllib.error.HTTPError as error:
    status = error.code
print(status, time.monotonic() - began)
"""


def test_a_lost_network_to_the_ledger(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Packets get lost, and nothing resets the connections: queries end soon, and succeed when the network is back."""
    database = tmp_path_factory.mktemp("postgres")
    with Namespace(4) as host, postgres_server(database, host=host.outer) as url:
        states = orders_states(f"sqlite:///{tmp_path}/shards", workers=1, ledger_at=url)
        states.publish(list(totals("general", dict.fromkeys(LOCATIONS, (1, "0.00")))))
        variables = environment(tmp_path, tmp_path / "shards", url)
        options = ("--pipeline", "orders", "--workers", "0", "--rest")
        with ServerProcess(variables, *options, port=PORT, before=host.inside):

            def ask() -> tuple[int, float]:
                url = f"http://127.0.0.1:{PORT}/sluice/v1/stores/general_orders_count/keys/{LOCATIONS[0]}"
                command = [*host.inside, sys.executable, "-c", ASK, url, TOKEN]
                status, seconds = subprocess.run(
                    command, capture_output=True, text=True, check=True
                ).stdout.split()
                return int(status), float(seconds)

            assert ask()[0] == 200
            host.unplug()
            with ThreadPoolExecutor(12) as pool:
                answers = [asked.result() for asked in [pool.submit(ask) for _ in range(12)]]
            assert {status for status, _ in answers} == {503}
            assert max(seconds for _, seconds in answers) < 11
            host.plug_in()
            until = time.monotonic() + 15
            while ask()[0] != 200:
                assert time.monotonic() < until
                time.sleep(0.5)


def test_workers_in_separate_network_namespaces(
    namespaces: list[Namespace], tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}"
    ledger = Ledger.open(ledger_url(database))
    with ExitStack() as stack:
        for number, one in enumerate(namespaces):
            variables = environment(tmp_path, tmp_path / f"host{number}", ledger_url(database))
            options = (
                "--bind",
                one.inner,
                "--pipeline",
                "orders",
                *(("--workers", str(number)) if number < 2 else ()),
            )
            stack.enter_context(ServerProcess(variables, *options, port=PORT, before=one.inside))
        states = orders_states(database, workers=2)
        states.publish(
            list(
                totals(
                    "general", {location: (n + 1, "0.00") for n, location in enumerate(LOCATIONS)}
                )
            )
        )
        front = Host(ledger, tmp_path / "front").start()
        stack.callback(front.stop)

        def counts() -> dict[str, int]:
            answer = front.get(COUNT)
            assert answer.status_code == 200, answer.text
            return {row["locationId"]: row["orderCount"] for row in answer.json()}

        expected = {location: n + 1 for n, location in enumerate(LOCATIONS)}
        assert counts() == expected
        mine = next(location for location in LOCATIONS if owner(location, 2) == 1)
        body = front.get(f"/v1/metadata/general_orders/{mine}").json()
        assert body == {"host": namespaces[1].inner, "port": PORT, "key": mine}

        move(ledger, Placement("orders", 1, namespaces[2].inner, PORT))
        states.publish(totals("general", {mine: (99, "0.00")}))
        assert front.get(COUNT, location_id=mine).json()["orderCount"] == 99

        namespaces[0].unplug()
        states.ledger.snapshots.publish(make_snapshot(states.batch + 1))
        assert set(counts()) == {location for location in LOCATIONS if owner(location, 2) == 1}
        assert front.get(COUNT).headers["X-Sluice-Unavailable"] == "0"
        namespaces[0].plug_in()
        until = time.monotonic() + 30
        while len(counts()) < len(LOCATIONS) and time.monotonic() < until:
            time.sleep(0.2)
        assert counts() == expected | {mine: 99}
