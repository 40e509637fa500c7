"""A state server of several processes, which answer at one address, and end together."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from sluice.errors import StateError
from sluice.server.further_processes import FurtherProcesses
from sluice.state.ledger.ledger import Ledger
from sluice.values.key_owners import owner
from tests.api.states import orders_states, totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import TOKEN
from tests.servers.processes import ServerProcess, environment
from tests.support.states import ledger_url

pytestmark = pytest.mark.servers

SHARD = "/local/orders/1"
COUNT = "/v1/orders/count/general_orders"
OPTIONS = ("--rest", "--processes", "2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of two processes, with worker 0 of two."""
    home = tmp_path_factory.mktemp("processes")
    states = orders_states(f"sqlite:///{home}", workers=2)
    states.publish(
        totals("general", {location: (n, "1.00") for n, location in enumerate(LOCATIONS)})
    )
    # The shard of the other worker is elsewhere.
    Path(states.location(1).removeprefix("sqlite:///")).unlink()
    with started(home, "--workers", "0", "--pipeline", "orders") as process:
        yield process


@contextmanager
def started(home: Path, *options: str, port: int | None = None) -> Iterator[ServerProcess]:
    variables = environment(home, home, ledger_url(f"sqlite:///{home}")) | {"TMPDIR": str(home)}
    Ledger.open(variables["SLUICE_LEDGER"]).close()
    process = ServerProcess(variables, *OPTIONS, *options, port=port)
    further = []
    try:
        process.start().wait()
        further = further_of(process)
        yield process
    finally:
        process.kill()
        # They end with the first process; otherwise, this kills them.
        for left in psutil.wait_procs(further, timeout=20)[1]:
            left.kill()


def further_of(server: ServerProcess) -> list[psutil.Process]:
    """The further processes of a server."""
    further = []
    for child in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            # A process that was killed is a zombie for a moment.
            if "multiprocessing.spawn" in " ".join(child.cmdline()):
                further.append(child)
    return further


@contextmanager
def only(process: psutil.Process, server: ServerProcess) -> Iterator[None]:
    """Stop all processes of the server but this one."""
    others = [
        other
        for other in (psutil.Process(server.process.pid), *further_of(server))
        if other != process
    ]
    for other in others:
        other.suspend()
    try:
        yield
    finally:
        for other in others:
            other.resume()


def of(server: ServerProcess) -> list[psutil.Process]:
    return [psutil.Process(server.process.pid), *further_of(server)]


def ask(server: ServerProcess, path: str, method: str = "GET") -> httpx.Response:
    """Send a request over a connection of its own."""
    url, headers = f"http://127.0.0.1:{server.port}{path}", {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(timeout=60, trust_env=False) as client:
        return client.request(method, url, headers=headers)


def test_each_process_answers_alike(server: ServerProcess) -> None:
    key = next(location for location in LOCATIONS if owner(location, 2) == 0)
    answers, cards = [], []
    for process in of(server):
        with only(process, server):
            answers.append(ask(server, f"{COUNT}?location_id={key}"))
            cards.append(ask(server, "/local").json())
    assert len(answers) == 2
    assert {answer.text for answer in answers} == {
        f'{{"locationId":"{key}","orderCount":{LOCATIONS.index(key)}}}'
    }
    assert answers[0].headers == answers[1].headers
    assert cards[0] == cards[1]


def counted(server: ServerProcess) -> int:
    """The number of answers at `/local`, as `/metrics` says."""
    text = ask(server, "/metrics").text
    found = re.search(
        r'^sluice_request_duration_seconds_count\{for="shard",status="2xx"\} (\d+)$',
        text,
        re.MULTILINE,
    )
    return int(found[1]) if found else 0


def test_metrics_count_the_answers_of_all_processes(server: ServerProcess) -> None:
    before, first = counted(server), True
    for process in of(server):
        with only(process, server):
            for _ in range(5 if first else 3):
                assert ask(server, "/local").status_code == 200
        first = False
    for process in of(server):
        with only(process, server):
            assert counted(server) == before + 8


def test_a_shard_that_arrives_at_one_process_is_known_to_the_other(server: ServerProcess) -> None:
    first, further = of(server)
    for process in (first, further):
        with only(process, server):
            assert ask(server, f"{SHARD}/1/size").status_code == 403
    with only(further, server):
        assert ask(server, f"{SHARD}/1?anew=true", "PUT").status_code == 200
    for process in (first, further):
        with only(process, server):
            assert ask(server, f"{SHARD}/1/size").status_code == 200


def test_a_process_that_is_killed_is_replaced(server: ServerProcess) -> None:
    (killed,) = further_of(server)
    before = counted(server)
    killed.kill()
    deadline = time.monotonic() + 60
    while further_of(server) in ([], [killed]) and time.monotonic() < deadline:
        assert ask(server, "/local").status_code == 200  # the first process still answers
        time.sleep(0.1)
    (new,) = further_of(server)
    assert new != killed
    with only(new, server):
        assert ask(server, "/local").status_code == 200
        assert counted(server) > before


def test_a_further_process_answers_its_requests_before_it_ends(tmp_path: Path) -> None:
    head = f"POST {SHARD}/0/query HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\r\n"
    with started(tmp_path) as server, socket.socket() as client:
        client.settimeout(20)
        (further,) = further_of(server)
        with only(further, server):
            client.connect(("127.0.0.1", server.port))
            client.sendall(head.encode() + b"{")
            time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        client.sendall(b"}")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        assert server.process.wait(20) in (0, -signal.SIGTERM)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_processes_end_together(tmp_path: Path, stop: signal.Signals) -> None:
    with started(tmp_path) as server:
        everything = psutil.Process(server.process.pid).children(recursive=True)
        # Ctrl-C in a terminal and systemd send their signals to all processes.
        for process in reversed(of(server)):
            process.send_signal(stop)
            time.sleep(0.4)
        output, _ = server.process.communicate(timeout=30)
        assert psutil.wait_procs(everything, timeout=20)[1] == []
        assert output == ""
        assert not list(tmp_path.glob("sluice-serve-*"))
        with socket.socket() as other:
            other.bind(("127.0.0.1", server.port))


def test_the_other_processes_end_when_the_first_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        everything = psutil.Process(server.process.pid).children(recursive=True)
        server.kill(signal.SIGKILL)
        assert psutil.wait_procs(everything, timeout=20)[1] == []
        assert not list(tmp_path.glob("sluice-serve-*"))
        with started(tmp_path, port=server.port) as next_server:
            assert ask(next_server, "/local").status_code == 200


def test_an_address_in_use_is_an_error(tmp_path: Path, server: ServerProcess) -> None:
    variables = environment(tmp_path, tmp_path, ledger_url(f"sqlite:///{tmp_path}"))
    second = ServerProcess(variables, *OPTIONS, port=server.port).start()
    text, _ = second.process.communicate(timeout=120)
    assert second.process.returncode == 1
    assert f"The server cannot listen on 127.0.0.1:{server.port}." in text
    assert "address already in use" in text


def fails(_number: int, _sockets: Sequence[socket.socket], _started: Callable[[], None]) -> None:
    raise RuntimeError("The ledger is gone.")


def ended() -> None:
    """Does nothing, but can be sent to another process."""


def test_a_process_that_does_not_start_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    further = FurtherProcesses([1], fails, ended)

    async def start() -> None:
        with pytest.raises(StateError, match="A process of the state server has not started"):
            await further.start([])
        further.begin_stop()

    asyncio.run(start())
    further.end()
    assert "The ledger is gone." in capfd.readouterr().err
