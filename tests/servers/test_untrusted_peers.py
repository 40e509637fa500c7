"""Untrusted peers: fake state servers, redirects, names that are paths, and secrets in responses and logs."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typing_extensions import override

from sluice.commands.worker_arguments import place_of
from sluice.errors import Refused, SettingsError, StateError
from sluice.operations.moves import move
from sluice.state.ledger.placement import Placement
from sluice.state.model import WorkerInfo
from sluice.values.key_owners import owner
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import CLIENT, TOKEN, Host, placed
from tests.servers.processes import ServerProcess, environment
from tests.support.states import States, ledger_url

COUNT = "/sluice/v1/stores/general_orders_count"
PASSWORD = "hunter2-of-the-database"
OF_1 = next(location for location in LOCATIONS if owner(location, 4) == 1)


class FakeServer:
    """A loopback server that sends a configured response to every request, and records the requests."""

    def __init__(
        self, status: int = 200, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", "0")))
                asked.append((self.path, dict(self.headers)))
                self.send_response(status)
                for name, value in (
                    {"content-length": str(len(content))} | (headers or {})
                ).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = _answer

            @override
            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def elsewhere() -> Iterator[FakeServer]:
    """A server that is not registered in the ledger."""
    with FakeServer() as elsewhere:
        yield elsewhere


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.attack("S10", "a registered server that redirects to another one")
def test_calls_only_go_to_the_registered_server(
    hosts: list[Host], states: States, elsewhere: FakeServer, status: int
) -> None:
    to = {"location": f"http://127.0.0.1:{elsewhere.port}/local/orders/1/1/query"}
    with FakeServer(status, headers=to) as redirecting:
        placed(states, Placement("orders", 1, "127.0.0.1", redirecting.port))
        page = hosts[0].get(COUNT, as_of="1.0", first="a").json()
        assert [worker["status"] for worker in page["workers"]] == ["ok", "unavailable", "ok", "ok"]
        assert hosts[0].get(f"{COUNT}/keys/{OF_1}").status_code == 503
        with pytest.raises((Refused, StateError)):
            move(states.ledger, Placement("orders", 2, "127.0.0.1", redirecting.port))
        assert redirecting.asked
    assert elsewhere.asked == []


@pytest.mark.parametrize(
    ("status", "content"),
    [
        (200, b""),
        (200, b"<html>hello</html>"),
        (200, b'{"detail":"ok"}'),
        (200, b"[[]]"),
        (200, b"\x80\x04K\x01."),
        (401, b'{"title":"Unauthorized","status":401,"detail":"no"}'),
        (403, b'{"title":"Refused","status":403,"detail":"It is not at this server."}'),
        (500, b"Internal Server Error"),
    ],
)
@pytest.mark.attack("S10", "another program at a registered address")
def test_an_unexpected_response_makes_the_worker_unavailable(
    hosts: list[Host], states: States, status: int, content: bytes
) -> None:
    with FakeServer(status, content) as other:
        placed(states, Placement("orders", 1, "127.0.0.1", other.port))
        for path in (COUNT, f"{COUNT}/count", f"{COUNT}/combine", f"{COUNT}/keys?key={OF_1}"):
            answer = hosts[0].get(path)
            assert answer.status_code < 500 or answer.json()["title"] == "State unavailable"
            if answer.status_code == 200:
                assert answer.json()["partial"], path
        assert hosts[0].get(f"{COUNT}/keys/{OF_1}").status_code in (403, 503)
        assert other.asked


@pytest.mark.attack(
    "S10", "a ledger entry with the address of a server that never claimed the worker"
)
def test_an_unclaimed_address_is_not_called(
    tmp_path: Path, hosts: list[Host], elsewhere: FakeServer
) -> None:
    local = States(f"sqlite:///{tmp_path}", pipeline="local", workers=2)
    local.publish({f"k{number}": f"[{number}]" for number in range(10)})
    led_away = f"http://127.0.0.1:{elsewhere.port}/local/local/1/0"
    workers = [
        WorkerInfo(pipeline="local", generation=1, number=n, location=at)
        for n, at in enumerate((led_away, local.location(1)))
    ]
    local.ledger.generations.register(msgspec.structs.replace(local.info(), workers=tuple(workers)))
    page = hosts[0].get("/sluice/v1/stores/totals?pipeline=local").json()
    assert [worker["status"] for worker in page["workers"]] == ["unavailable", "ok"]
    assert "does not belong to a registered state server" in page["workers"][0]["reason"]
    assert elsewhere.asked == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"host": "127.0.0.1", "port": "{}"},
        {"address": "http://127.0.0.1:{}"},
        {"server": "http://127.0.0.1:{}"},
        {"location": "http://127.0.0.1:{}"},
        {"worker": "http://127.0.0.1:{}"},
    ],
)
@pytest.mark.attack("S10", "selecting the host of a query: parameters, Host, X-Forwarded-Host")
def test_no_request_can_select_a_host(
    hosts: list[Host], states: States, elsewhere: FakeServer, parameters: dict[str, str]
) -> None:
    there = {name: value.format(elsewhere.port) for name, value in parameters.items()}
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Host": f"127.0.0.1:{elsewhere.port}",
        "X-Forwarded-Host": f"127.0.0.1:{elsewhere.port}",
    }
    for path in (COUNT, f"{COUNT}/keys/{OF_1}", "/v1/orders/count", "/v1/metadata/all"):
        for given, status in ((there, 422), ({}, 200)):
            answer = CLIENT.get(f"http://{hosts[0].address}{path}", params=given, headers=headers)
            assert answer.status_code == status
            assert str(elsewhere.port) not in answer.text
    assert elsewhere.asked == []


NAMES = [
    "..",
    "%2e%2e",
    ".",
    "a%2fb",
    "a%5cb",
    "%00",
    "orders%00",
    "orders.sqlite",
    "%c0%ae",
    "a b",
    "ö",
    "-" * 5_000,
]


@pytest.mark.attack("S4", "names of pipelines, sent to a state server, that look like paths")
def test_no_name_escapes_a_servers_folder(
    hosts: list[Host], states: States, tmp_path: Path
) -> None:
    before = {path for path in tmp_path.rglob("*") if hosts[0].folder not in path.parents}
    for name in NAMES:
        for method, path in (
            ("PUT", "?anew=true"),
            ("PUT", ""),
            ("GET", "/size"),
            ("POST", "/calls/journal"),
            ("DELETE", ""),
        ):
            answer = hosts[0].ask(method, f"/local/{name}/1/0{path}", content=b"\x90")
            assert answer.status_code in (403, 404), (name, method, answer.text)
    for number in ("-1", "x", "%2e%2e", "9" * 30, "0%00", "1.0"):
        assert hosts[0].ask("GET", f"/local/orders/1/{number}/size").status_code in (403, 404)
    assert {path for path in tmp_path.rglob("*") if hosts[0].folder not in path.parents} == before
    assert not list(hosts[0].folder.rglob("*.."))


@pytest.mark.attack("S5", "an endless query, sent to a state server in pieces")
def test_a_query_has_a_time_limit(hosts: list[Host], states: States) -> None:
    pieces = (b"x" * 1_000_000 for _ in range(5))
    refused = hosts[0].ask("POST", "/local/orders/1/0/query", content=pieces)
    assert (refused.status_code, refused.json()["title"]) == (413, "Too big")


def texts_of(hosts: list[Host]) -> str:
    """All text that a user can read about a pipeline whose databases are unreachable."""
    paths = [
        "/sluice/v1/stores?entries=true",
        "/sluice/v1/pipelines",
        "/sluice/v1/pipelines/away/workers",
    ]
    of_store = ("?", "/keys/a?", "/count?", "/combine?", "?require=complete&")
    paths += [f"/sluice/v1/stores/totals{what}pipeline=away" for what in of_store]
    answers = [hosts[0].get(path) for path in paths]
    assert {answer.status_code for answer in answers} == {200, 503}
    return "".join(answer.text + str(answer.headers) for answer in answers)


@pytest.mark.attack("S9", "reading responses and logs about an unreachable database")
def test_no_response_or_log_contains_a_database_password(
    hosts: list[Host],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    away = States(f"sqlite:///{tmp_path}", pipeline="away", workers=1)
    away.publish({"a": "[1]"})
    place = f"postgresql://sluice:{PASSWORD}@127.0.0.1:1/state?schema=s"
    worker = WorkerInfo(pipeline="away", generation=1, number=0, location=place)
    away.ledger.generations.register(msgspec.structs.replace(away.info(), workers=(worker,)))
    told = texts_of(hosts)
    assert "unavailable" in told
    assert PASSWORD not in told + caplog.text + "".join(capfd.readouterr())


@pytest.mark.attack(
    "S9", "reading the process list, the environment of children, and a state server's output"
)
def test_no_secret_is_in_the_process_list_or_the_output(tmp_path: Path) -> None:
    States(f"sqlite:///{tmp_path}", workers=1).publish({"a": "[1]"})
    variables = environment(tmp_path, tmp_path, ledger_url(f"sqlite:///{tmp_path}"))
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    from_file = {name: value for name, value in variables.items() if name != "SLUICE_SERVER_TOKEN"}
    for given in (variables, from_file | {"SLUICE_SERVER_TOKEN_FILE": str(secret)}):
        with ServerProcess(given, "--rest") as server:
            process = psutil.Process(server.process.pid)
            assert TOKEN not in json.dumps(
                [one.cmdline() for one in (process, *process.children(recursive=True))]
            )
            server.kill(15)
    broken = variables | {"SLUICE_LEDGER": f"postgresql://sluice:{PASSWORD}@127.0.0.1:1/ledger"}
    failing = ServerProcess(broken).start()
    output, _ = failing.process.communicate(timeout=60)
    assert (failing.process.returncode, PASSWORD in output, TOKEN in output) == (1, False, False)


@pytest.mark.parametrize(
    "address",
    [
        "evil.example/x:80",
        "evil.example#:80",
        "a@evil.example:80",
        "evil.example?:80",
        "x",
        ":80",
        "x:",
        "x:0",
        "x:65536",
        "x:٨٠",
        "::1:80",
        "[x]:80",
        "[::1%lo]:80",
        "[::1:80",
        f"x:{'9' * 5_000}",
    ],
)
@pytest.mark.attack("S10", "an address with more than host and port for a move")
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(SettingsError, match="is not HOST:PORT"):
        place_of("orders", 1, address, tls=False)


@pytest.mark.parametrize("address", ["state-1.example:7070", "10.0.0.6:65535", "[fd00::6]:7070"])
def test_an_address_is_shown_as_commands_take_it(address: str) -> None:
    place = place_of("orders", 1, address, tls=True)
    assert (place.host_port, place.url) == (address, f"https://{address}/local")
