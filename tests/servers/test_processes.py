"""State servers in separate processes behind the REST API: killed, restarted, and called without the token."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.shard_calls import PROTOCOL, PROTOCOL_HEADER
from sluice.values.key_owners import owner
from tests.api.states import orders_states, totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import CLIENT, TOKEN
from tests.servers.processes import SLUICE, ServerProcess, environment
from tests.support.airflow_server import ANSWER_SECONDS, AirflowServer
from tests.support.api_client import Api
from tests.support.states import States, ledger_url

PLUGINS = Path(__file__).parents[2] / "plugins"
COUNT = "/v1/orders/count/general_orders"
SHARD = "/local/orders/1"
QUESTION = b'{"type":"Value","group_id":0,"store_column":0,"as_of":0,"key":"store_1"}'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def servers(home: Path) -> Iterator[list[ServerProcess]]:
    """Four hosts with one worker each."""
    ledger = ledger_url(f"sqlite:///{home}")
    Ledger.open(ledger).close()
    results = [
        ServerProcess(
            environment(home, home / f"host{n}", ledger),
            "--workers",
            str(n),
            "--pipeline",
            "orders",
        )
        for n in range(4)
    ]
    with ExitStack() as stack:
        for number, server in enumerate(results):
            server.start()
            stack.callback(_end, results, number)
        for server in results:
            server.wait()
        yield results


def _end(servers: list[ServerProcess], number: int) -> None:
    """End the current server at this index, which a test may have replaced."""
    servers[number].kill()


@pytest.fixture(scope="module")
def published(home: Path, servers: list[ServerProcess]) -> None:
    """A snapshot of the orders pipeline on the four hosts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_SERVER_TOKEN", TOKEN)
        settings.cache_clear()
        states = orders_states(f"sqlite:///{home}", workers=4)
        states.publish(
            totals(
                "general", {location: (n + 1, f"{n}.00") for n, location in enumerate(LOCATIONS)}
            )
        )
    settings.cache_clear()


@pytest.fixture(scope="module")
def airflow(home: Path, published: None) -> Iterator[AirflowServer]:
    variables = {"SLUICE_HOME": str(home), "SLUICE_SERVER_TOKEN": TOKEN}
    with AirflowServer(home / "airflow", plugins_folder=PLUGINS, env=variables) as server:
        yield server


# tests/api shows that the API behaves the same in Airflow.
@pytest.fixture(params=["in this process", pytest.param("in Airflow", marks=pytest.mark.heavy)])
def viewer(request: pytest.FixtureRequest, home: Path, published: None) -> Iterator[httpx.Client]:
    """A client of the REST API."""
    with ExitStack() as stack:
        if request.param == "in Airflow":
            airflow: AirflowServer = request.getfixturevalue("airflow")
            yield stack.enter_context(airflow.client("viewer"))
            return
        ledger = stack.enter_context(Ledger.open(ledger_url(f"sqlite:///{home}")))
        address = stack.enter_context(Api(ledger).serve())
        yield stack.enter_context(
            httpx.Client(base_url=address, timeout=ANSWER_SECONDS, trust_env=False)
        )


@pytest.fixture
def states(home: Path, published: None) -> States:
    return orders_states(f"sqlite:///{home}", workers=4)


def counts(answer: httpx.Response) -> dict[str, int]:
    return {row["locationId"]: row["orderCount"] for row in answer.json()}


def test_the_api_queries_all_servers(viewer: httpx.Client, servers: list[ServerProcess]) -> None:
    expected = {location: number + 1 for number, location in enumerate(LOCATIONS)}
    assert counts(viewer.get(COUNT)) == expected
    for location, count in expected.items():
        response = viewer.get(COUNT, params={"location_id": location})
        assert response.text == f'{{"locationId":"{location}","orderCount":{count}}}'
        at = viewer.get(f"/v1/metadata/general_orders/{location}").json()
        assert at == {
            "host": "127.0.0.1",
            "port": servers[owner(location, 4)].port,
            "key": location,
        }
    assert viewer.get("/v1/metadata/all").json() == [
        {"host": "127.0.0.1", "port": server.port} for server in servers
    ]
    assert viewer.get(COUNT, params={"query_other_hosts": False}).json() == []


def test_a_killed_server_is_reported_until_it_restarts(
    viewer: httpx.Client, servers: list[ServerProcess]
) -> None:
    servers[2].kill()
    time.sleep(1.0)  # a complete response may be cached for this long
    answer = viewer.get(COUNT)
    assert set(counts(answer)) == {location for location in LOCATIONS if owner(location, 4) != 2}
    assert answer.headers["X-Sluice-Unavailable"] == "2"
    assert viewer.get("/sluice/v1/stores/general_orders_count?require=complete").status_code == 503
    page = viewer.get("/sluice/v1/pipelines/orders/workers").json()
    assert [worker["status"] for worker in page] == ["ok", "ok", "unavailable", "ok"]

    # The restarted server finds its workers in the ledger.
    servers[2] = ServerProcess(servers[2].variables, port=servers[2].port).start().wait()
    whole = viewer.get(COUNT)
    assert (len(counts(whole)), whole.headers["X-Sluice-Partial"]) == (40, "false")


def test_a_server_ends_after_sigterm(home: Path) -> None:
    with ServerProcess(
        environment(home, home / "host9", ledger_url(f"sqlite:///{home}"))
    ) as server:
        assert server.kill(signal.SIGTERM) in (0, -signal.SIGTERM)


@pytest.mark.attack("S1", "every path of a state server without the token, and with a wrong token")
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path",
    ["/", "/local", f"{SHARD}/0", f"{SHARD}/0/query", f"{SHARD}/0/calls/journal", "/sluice/"],
)
def test_without_the_token_every_path_is_401(
    servers: list[ServerProcess], path: str, method: str
) -> None:
    url = f"http://127.0.0.1:{servers[0].port}{path}"
    for given in (
        None,
        "Bearer",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        TOKEN,
    ):
        headers = {"Authorization": given} if given is not None else {}
        assert CLIENT.request(method, url, headers=headers, content=QUESTION).status_code == 401


def ask(server: ServerProcess, method: str, path: str, content: bytes = b"") -> httpx.Response:
    headers = {"Authorization": f"Bearer {TOKEN}", PROTOCOL_HEADER: PROTOCOL}
    return CLIENT.request(
        method, f"http://127.0.0.1:{server.port}{path}", headers=headers, content=content
    )


@pytest.mark.attack("S10", "querying a state server, with the token, for another server's shards")
def test_a_server_rejects_requests_for_other_servers_shards(
    servers: list[ServerProcess], states: States
) -> None:
    assert ask(servers[0], "POST", f"{SHARD}/0/query", QUESTION).status_code == 200
    for method, path in (
        ("POST", f"{SHARD}/1/query"),
        ("GET", f"{SHARD}/1/size"),
        ("PUT", f"{SHARD}/1"),
        ("POST", "/local/payroll/1/0/query"),
        ("POST", f"{SHARD}/1/calls/seal"),
    ):
        content = b"\x91\xc3" if path.endswith("/seal") else QUESTION
        refused = ask(servers[0], method, path, content)
        assert (refused.status_code, refused.headers["Content-Type"]) == (
            403,
            "application/problem+json",
        )
        assert "is not at this server" in refused.json()["detail"]


@pytest.mark.attack("S5", "invalid queries to a state server: SQL, a pickle, 5 MB")
@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        (f"{SHARD}/0/query", b"", 400),
        (f"{SHARD}/0/query", b'{"type":"Drop","group_id":0}', 400),
        (
            f"{SHARD}/0/query",
            b'{"type":"Value","group_id":"0 OR 1=1","store_column":0,"as_of":0,"key":"a"}',
            400,
        ),
        (f"{SHARD}/0/query", b"x" * 5_000_000, 413),
        (f"{SHARD}/0/calls/row_versions", b"\x80\x04K\x01.", 400),
        (f"{SHARD}/0/calls/compact", b"\x911;x", 400),
        ("/local/orders/..%2f..%2fetc/1/0/query", QUESTION, 404),
        ("/local/orders/x/0/query", QUESTION, 404),
        ("/elsewhere", b"", 404),
    ],
)
def test_invalid_requests_are_rejected(
    servers: list[ServerProcess], states: States, path: str, content: bytes, status: int
) -> None:
    assert ask(servers[0], "POST", path, content).status_code == status


@pytest.mark.attack("S10", "a second process that claims a worker")
def test_a_second_server_cannot_claim_a_worker(
    home: Path, servers: list[ServerProcess], states: States
) -> None:
    variables = environment(home, home / "host0", ledger_url(f"sqlite:///{home}"))
    thief = ServerProcess(variables, "--workers", "0", "--pipeline", "orders").start()
    output, _ = thief.process.communicate(timeout=120)
    assert thief.process.returncode == 1
    assert f"Worker 0 of 'orders' is at 127.0.0.1:{servers[0].port}, not here." in output
    assert states.ledger.placements.of("orders")[0].port == servers[0].port


def test_a_server_without_a_token_does_not_start(home: Path) -> None:
    variables = environment(home, home / "host0", ledger_url(f"sqlite:///{home}"))
    del variables["SLUICE_SERVER_TOKEN"]
    process = subprocess.run(
        [SLUICE, "serve"], env=variables, capture_output=True, text=True, check=False, timeout=120
    )
    assert process.returncode == 1
    assert "A state server needs a token" in process.stderr


def test_commands_list_and_move_workers(
    home: Path, servers: list[ServerProcess], viewer: httpx.Client
) -> None:
    variables = servers[0].variables
    there = f"127.0.0.1:{servers[0].port}"
    moved = subprocess.run(
        [SLUICE, "move", "orders", "1", there],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (moved.returncode, moved.stderr) == (0, "")
    assert f"Worker 1 of orders is now at {there}" in moved.stdout
    told = subprocess.run(
        [SLUICE, "workers", "orders"], env=variables, capture_output=True, text=True, check=True
    )
    assert told.stdout.count(there) == 2
    assert TOKEN not in moved.stdout + told.stdout
    assert len(counts(viewer.get(COUNT))) == 40


@pytest.mark.attack("S10", "a state server with an untrusted certificate")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_certificate_is_verified(tmp_path: Path, processes: int) -> None:
    certificate, key = _certificate(tmp_path)
    states = States(f"sqlite:///{tmp_path}/tls", workers=1)
    states.publish({"a": "[1]"})
    variables = environment(tmp_path, tmp_path / "tls-host", ledger_url(states.database)) | {
        "TMPDIR": str(tmp_path)
    }
    options = "--certificate", str(certificate), "--key", str(key), "--processes", str(processes)
    with ServerProcess(variables, *options) as server:
        command = [SLUICE, "move", "orders", "0", f"127.0.0.1:{server.port}", "--tls"]
        unknown = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False
        )
        assert unknown.returncode == 1
        trusting = variables | {"SLUICE_SERVER_CA": str(certificate)}
        assert (
            subprocess.run(command, env=trusting, check=False, capture_output=True).returncode == 0
        )
        (worker,) = states.ledger.generations.workers("orders")
        assert worker.server == f"https://127.0.0.1:{server.port}/local/orders/1/0"
        answer = httpx.post(
            f"{worker.server}/query",
            content=b'{"type":"Value","group_id":0,"store_column":0,"as_of":0,"key":"a"}',
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=ssl.create_default_context(cafile=str(certificate)),
        )
        assert answer.text == "1"


def _certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    openssl = shutil.which("openssl")
    assert openssl is not None
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=sluice",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
