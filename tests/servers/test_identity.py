"""A state server proves who it is. Its address is only where it is looked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from sluice.errors import Refused, SettingsError, StateError
from sluice.operations.moves import move, require_server
from sluice.server import served_shards
from sluice.server.served_shards import identity_of
from sluice.server.state_server import ServerOptions, register
from sluice.settings import settings
from sluice.state.ledger.placement import Placement
from sluice.state.remote import server_identity
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import TOKEN, Host
from tests.servers.processes import ServerProcess, environment
from tests.support.ports import free_port
from tests.support.states import States, ledger_url


def place(host: Host) -> Placement:
    return Placement("orders", 1, "127.0.0.1", host.port)


def enrol(host: Host, folder: Path | None = None, **options: object) -> None:
    """What a server does when it has started, as the server of this folder."""
    known = replace(settings(), shards=f"sqlite:///{folder or host.folder}")
    register(host.ledger, known, replace(host.options, **options))  # type: ignore[arg-type]


@pytest.mark.attack("S10", "two hosts that give their servers the same address")
def test_an_address_belongs_to_one_server(hosts: list[Host], states: States) -> None:
    enrol(hosts[0])
    enrol(hosts[0])  # after a restart
    # On another host, the same loopback address leads to another server.
    other = hosts[1].folder
    hosts[0].ledger.servers.register("127.0.0.1", hosts[1].port, "another server", takes_over=False)
    with pytest.raises(Refused, match="Another state server has registered the address"):
        enrol(hosts[1], other)
    with pytest.raises(Refused, match="is not the one that has this address"):
        require_server(hosts[0].ledger, place(hosts[1]))
    with pytest.raises(Refused, match="is not the one that has this address"):
        move(hosts[0].ledger, place(hosts[1]))
    enrol(hosts[1], other, take_over=True)
    require_server(hosts[0].ledger, place(hosts[1]))


def test_a_server_does_not_serve_the_workers_of_another_one_with_its_address(
    hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_shards, "REFRESH_SECONDS", -1)
    hosts[0].ledger.servers.register("127.0.0.1", hosts[1].port, "another server", takes_over=True)
    refused = hosts[1].ask("GET", "/local/orders/1/1/size")
    assert (refused.status_code, refused.json()["detail"]) == (
        403,
        "Worker 1 of 'orders' is not at this server.",
    )
    answer = hosts[0].get("/v1/orders/count/general_orders")
    assert answer.headers.get("X-Sluice-Partial") == "true", (answer.status_code, answer.text[:300])
    assert answer.headers["X-Sluice-Partial"] == "true"
    assert len(answer.json()) < len(LOCATIONS)


@pytest.mark.attack("S10", "a name that leads to another state server")
def test_a_server_whose_name_leads_elsewhere_does_not_register(hosts: list[Host]) -> None:
    with pytest.raises(Refused, match="leads to another state server, not to this one"):
        enrol(hosts[1], hosts[2].folder)
    with pytest.raises(StateError, match="No state server answers"):
        enrol(hosts[0], port=free_port())


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "0", "", "0.0"])
def test_an_address_of_every_host_is_no_name(bind: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="stands for all addresses"):
        ServerOptions(7070, bind=bind)
    with pytest.raises(SettingsError, match="stands for all addresses"):
        ServerOptions(7070, host=bind or "0.0.0.0")
    assert ServerOptions(7070, bind=bind, host="state-1.example").name == "state-1.example"


@pytest.mark.parametrize(
    "host", ["http://x", "a:b", "user@127.0.0.1", "[::1]", "fe80::1%lo", "x y", "x:7070"]
)
def test_a_name_is_a_host_and_nothing_else(host: str) -> None:
    with pytest.raises(SettingsError, match="is neither the name of a host nor an IP address"):
        ServerOptions(7070, host=host)


def test_a_server_that_does_not_reach_itself_says_what_to_do(hosts: list[Host]) -> None:
    with pytest.raises(StateError, match=r"does not reach itself at 127\.0\.0\.1:9") as error:
        enrol(hosts[0], port=9)
    assert "--host" in error.value.next_step
    assert "publishNotReadyAddresses" in error.value.next_step


def test_sluice_serve_registers_and_is_refused_at_another_ones_address(tmp_path: Path) -> None:
    states = States(f"sqlite:///{tmp_path}", workers=1)
    port = free_port()
    first = environment(tmp_path, tmp_path / "first", ledger_url(states.database))
    with ServerProcess(first, port=port):
        assert states.ledger.servers.identity("127.0.0.1", port) == identity_of(
            f"sqlite:///{tmp_path}/first"
        )
    second = environment(tmp_path, tmp_path / "second", ledger_url(states.database))
    process = ServerProcess(second, port=port).start().process
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"Another state server has registered the address 127.0.0.1:{port}" in " ".join(
        output.split()
    )
    with ServerProcess(first, port=port):
        pass


class _Impostor(BaseHTTPRequestHandler):
    """A program that took over a state server's port, and answers as it does, without the token."""

    heard: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.heard.append(self.headers["Authorization"])
        host, port = self.headers["Host"].split(":")
        self.send_response(200)
        self.send_header(server_identity.PROOF, "00" * 32)
        self.end_headers()
        self.wfile.write(
            f'{{"host":"{host}","port":{port},"database":"sqlite","server":"x"}}'.encode()
        )

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def impostor() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Impostor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.attack("S10", "a program without the token at the address of a state server")
def test_an_impostor_gets_neither_the_token_nor_a_worker(
    hosts: list[Host], states: States, impostor: int
) -> None:
    with pytest.raises(Refused, match="did not prove that it knows the token"):
        move(hosts[0].ledger, Placement("orders", 1, "127.0.0.1", impostor))
    assert _Impostor.heard
    assert not any(TOKEN in heard for heard in _Impostor.heard)


@pytest.mark.attack("S10", "challenges by somebody without the token")
@pytest.mark.parametrize("credentials", ["x", f"{'0' * 64}.{'0' * 64}", "\u00e9" * 129])
def test_a_server_proves_nothing_to_those_without_the_token(
    hosts: list[Host], credentials: str
) -> None:
    headers = {b"Authorization": f"{server_identity.SCHEME} {credentials}".encode("latin-1")}
    answer = httpx.get(f"http://{hosts[0].address}/local", headers=headers, trust_env=False)
    assert (answer.status_code, server_identity.PROOF in answer.headers) == (401, False)


@pytest.mark.attack("S10", "a shard that the ledger does not know")
@pytest.mark.parametrize("shard", ["orders/5/0", "evil/1/0", "orders/1/77", "orders/9/0"])
def test_no_shard_is_made_that_the_ledger_does_not_know(
    hosts: list[Host], states: States, shard: str
) -> None:
    refused = hosts[0].ask("PUT", f"/local/{shard}?anew=true")
    assert (refused.status_code, refused.json()["detail"][:23]) == (403, "The ledger has no worke")
    pipeline, generation, number = shard.split("/")
    assert not (hosts[0].folder / pipeline / f"g{generation}" / f"worker-{number}.sqlite").exists()


def test_while_the_token_is_replaced_servers_accept_the_old_and_the_new_one(
    states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = "another-token-of-these-tests"
    monkeypatch.setenv("SLUICE_SERVER_TOKEN_ALSO", new)
    settings.cache_clear()
    host = Host(states.ledger, tmp_path / "rotated").start()
    try:
        statuses = [
            host.ask("GET", "/sluice/v1/stores", token=token).status_code
            for token in (TOKEN, new, f"{new}x", TOKEN[:-1])
        ]
        assert statuses == [200, 200, 401, 401]
        url = f"http://{host.address}/local"
        assert server_identity.fetch_card(url, host.address).port == host.port
        monkeypatch.setenv("SLUICE_SERVER_TOKEN", new)
        settings.cache_clear()
        assert server_identity.fetch_card(url, host.address).port == host.port
        monkeypatch.setenv("SLUICE_SERVER_TOKEN", "a-token-that-nobody-has")
        settings.cache_clear()
        with pytest.raises(Refused, match="rejected the token"):
            server_identity.fetch_card(url, host.address)
    finally:
        host.stop()
