"""The process of a state server: its options, its registration in the ledger, and its ASGI app."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from sluice.api.apps import custom_routes_app, generic_app
from sluice.api.routes.api_state import API_STATE, ApiState
from sluice.errors import Refused, SettingsError, StateError, sentence
from sluice.query import Reader
from sluice.server.admission import MOST_UNPROVEN, Admission, Arrival, raise_file_limit
from sluice.server.further_processes import STOP_SECONDS, FurtherProcesses
from sluice.server.http_protocol import PatientProtocol
from sluice.server.latencies import Latencies
from sluice.server.local_routes import LocalApp, not_found
from sluice.server.metrics_route import MetricsApp
from sluice.server.served_shards import ServedShards, identity_of
from sluice.server.shared import Shared
from sluice.server.token_required import TokenRequired
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.model import GenerationRef
from sluice.state.remote import server_identity
from sluice.state.shard.addresses import location
from sluice.state.shard.local_shard import LocalShard
from sluice.support.startup import freeze_imports
from sluice.values.host_ports import address_of, is_host

log = logging.getLogger(__name__)

_BACKLOG = 512
_GIVE_A_NAME = "Set --host to the name by which the other hosts reach this one."


@dataclass(frozen=True)
class ServerOptions:
    """A state server's start-up options."""

    port: int
    bind: str = "127.0.0.1"
    """The address to listen on."""
    host: str = ""
    """The host name by which other hosts reach the server; if empty, `bind`."""
    certificate: Path | None = None
    key: Path | None = None
    rest: bool = False
    """Whether to serve the REST API, too, to clients with the token."""
    take_over: bool = False
    """Whether to take the address over from another server."""
    processes: int = 1
    """The number of processes that answer requests."""

    def __post_init__(self) -> None:
        """Raise SettingsError unless the name is a host name or the address of one host."""
        if _leads_anywhere(self.name):
            raise SettingsError(
                f"{self.name!r} stands for all addresses of a host, so callers cannot use it to "
                "reach this server.",
                next_step=_GIVE_A_NAME,
            )
        if not is_host(self.name):
            raise SettingsError(
                f"{self.name!r} is neither the name of a host nor an IP address.",
                next_step=f"{_GIVE_A_NAME} Write it without a port or brackets.",
            )

    @property
    def name(self) -> str:
        """The host name by which other hosts reach the server."""
        return self.host or self.bind

    def place(self, pipeline: str, number: int) -> Placement:
        """Return the placement of a worker on this server."""
        return Placement(pipeline, number, self.name, self.port, self.certificate is not None)


def claim(
    ledger: Ledger,
    configuration: Settings,
    options: ServerOptions,
    pipeline: str,
    numbers: Iterable[int],
) -> None:
    """Place workers on this server.

    The server must already listen at its address, so that no other program can. Otherwise, that
    program would get the token, which readers send to this address. Raise Refused if there is no
    such worker, if it is on another server, or if its state is on another host.
    """
    generations = ledger.generations.all(pipeline)
    most = max((len(info.workers) for info in generations), default=None)
    placed = ledger.placements.of(pipeline)
    for number in numbers:
        is_here = number in placed and placed[number].address == (options.name, options.port)
        if most is not None and number >= most:
            raise Refused(
                f"{pipeline!r} has no worker {number}.",
                next_step=f"It has {most} workers, which are numbered from 0.",
            )
        for info in generations:
            # A generation without a snapshot has no state that could be on another host.
            if ledger.snapshots.last_batch(info.ref) is not None:
                place = location(configuration.shards, info.ref, number)
                try:
                    # If the worker is at this server already, do not compare its shard with the
                    # ledger. Otherwise, a damaged shard would keep the server from starting.
                    if is_here:
                        LocalShard.open(place).close()
                    else:
                        _require_published(ledger, info.ref, number, place)
                except StateError as error:
                    address = options.place(pipeline, number).host_port
                    tls = " --tls" if options.certificate else ""
                    raise Refused(
                        f"Worker {number} of {pipeline!r} has state, but its shard is not on this "
                        f"host. {error.detail}",
                        next_step="Start without --workers, then: "
                        f"sluice move {pipeline} {number} {address}{tls}",
                    ) from None
        ledger.placements.claim(options.place(pipeline, number))


def _require_published(ledger: Ledger, ref: GenerationRef, worker: int, address: str) -> None:
    """Raise StateError if the worker was moved from here, or its shard lacks published state."""
    audit = ledger.audits.newest(ref)
    with LocalShard.open(address) as shard:
        if shard.is_sealed():
            raise StateError("The shard here has been moved away.")
        if audit is None or (published := audit.published_checksums(worker)) is None:
            return
        reason = shard.checksums(audit.batch).difference(published)
        if reason:
            raise StateError(f"The shard here does not have the published state. {reason}")


def register(ledger: Ledger, configuration: Settings, options: ServerOptions) -> None:
    """Register this server, which must already listen, as the owner of its address.

    Raise StateError or Refused if the address does not lead to this server. Raise Refused if
    another server has the same address, such as 127.0.0.1 on another host.
    """
    place, own = options.place("", 0), identity_of(configuration.shards)
    try:
        # The certificate need not be verified. With its card, a description of itself, the server
        # sends a proof that it knows the token.
        card = server_identity.fetch_card(place.url, place.host_port, verify_certificate=False)
    except StateError as error:
        raise StateError(
            f"This server does not reach itself at {place.host_port}, so other hosts may not "
            f"reach it, either. {error.detail}",
            next_step=f"{_GIVE_A_NAME} A Kubernetes service must also lead to the server before "
            "the server is ready: publishNotReadyAddresses: true.",
        ) from None
    if card.server != own:
        raise Refused(
            f"{place.host_port} leads to another state server, not to this one.",
            next_step=_GIVE_A_NAME,
        )
    # The card proves that the address leads to this server, so no other server has the address. The
    # exception is a loopback address such as 127.0.0.1, which every host has.
    takes_over = options.take_over or not _is_loopback(options.name)
    ledger.servers.register(options.name, options.port, own, takes_over=takes_over)


def _leads_anywhere(host: str) -> bool:
    """Return whether the name stands for all addresses of a host."""
    return any(ip_address(address).is_unspecified for address in _addresses(host))


def _is_loopback(host: str) -> bool:
    return any(ip_address(address).is_loopback for address in _addresses(host))


def _addresses(host: str) -> set[str]:
    """Return the addresses to which this host resolves a name, if any."""
    try:
        infos = socket.getaddrinfo(
            host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        return set()
    addresses: set[str] = set()
    for *_, address in infos:
        # An IPv6 address may end with the zone of a network interface, as in fe80::1%eth0.
        addresses.add(str(address[0]).partition("%")[0])
    return addresses


def make_app(
    ledger: Ledger, configuration: Settings, options: ServerOptions, shared: Shared | None = None
) -> ASGIApp:
    """Return the server's ASGI app: `/local`, `/metrics` and, with `options.rest`, the REST API.

    Every request needs the token. `shared` is None in a server of one process.
    """
    shared = shared or Shared()
    if not configuration.server_token:
        raise SettingsError(
            "A state server needs a token, which its clients must send.",
            next_step="Set SLUICE_SERVER_TOKEN or SLUICE_SERVER_TOKEN_FILE. To create a token: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    shards = ServedShards(
        ledger, configuration.shards, options.name, options.port, arriving=shared.arriving
    )
    latencies = Latencies(shared.latencies, shared.number)
    mounted: dict[str, ASGIApp] = {
        "/local": LocalApp(shards).app,
        "/metrics": MetricsApp(ledger, configuration, shards.served_location, latencies),
    }
    if options.rest:
        state = ApiState(ledger, Reader(ledger, shards.served_location))
        mounted |= {
            "/sluice": _WithState(generic_app(configuration.pipelines), state, "/sluice"),
            "/v1": _WithState(custom_routes_app(configuration.pipelines), state, "/v1"),
        }
    measured = {prefix: latencies.of(prefix, app) for prefix, app in mounted.items()}
    tokens = [configuration.server_token]
    if configuration.server_token_also:
        tokens.append(configuration.server_token_also)
    return TokenRequired(_Mounts(measured), tokens, shards.card)


def further_processes(
    configuration: Settings, options: ServerOptions, shared: Shared
) -> FurtherProcesses | None:
    """Return the processes of a state server besides this one; None if it has one process."""
    if options.processes == 1:
        return None
    serve_further = partial(_serve_further, configuration, options, shared)
    return FurtherProcesses(range(1, options.processes), serve_further, shared.remove)


def _serve_further(
    configuration: Settings,
    options: ServerOptions,
    shared: Shared,
    number: int,
    sockets: Sequence[socket.socket],
    started: Callable[[], None],
) -> None:
    """Run server process `number`, accepting connections on the first process's sockets."""
    with Ledger.open(configuration.ledger) as ledger:
        app = make_app(ledger, configuration, options, shared.of_process(number))
        serve(app, options, started, sockets=sockets)


def serve(
    app: ASGIApp,
    options: ServerOptions,
    started: Callable[[], None],
    *,
    further: FurtherProcesses | None = None,
    sockets: Sequence[socket.socket] | None = None,
) -> None:
    """Serve until the process receives a signal to stop. Calls `started` once the server listens.

    Start and end the processes `further`. In a further process, `sockets` are the first process's
    sockets. Raise SettingsError if the certificate or the key cannot be read, and StateError if the
    address cannot be used or a further process does not start.
    """
    config = uvicorn_config(app, options)
    try:
        config.load()
    except OSError as error:
        raise SettingsError(
            f"The server cannot read its certificate {options.certificate} and key {options.key}: "
            f"{sentence(error)}",
            next_step="Give PEM files that belong together: --certificate and --key.",
        ) from None
    freeze_imports()
    server = _Server(config, started, further)
    try:
        server.run(None if sockets is None else [*sockets])
    except SystemExit:
        # Uvicorn exits after a signal, but also if the address is in use, before the server has
        # started.
        if server.started:
            raise
        # Uvicorn has logged the error.
        raise StateError(
            f"The server cannot listen on {address_of(options.bind, options.port)}.",
            next_step="Choose a free port with --port, and an address of this host with --bind.",
        ) from None
    finally:
        if further is not None:
            further.end()


def uvicorn_config(app: ASGIApp, options: ServerOptions) -> uvicorn.Config:
    return _AdmissionConfig(
        app,
        host=options.bind,
        port=options.port,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        http=PatientProtocol,
        loop="uvloop",
        # Uvicorn assumes an older ASGI version unless the app's `__call__` is a coroutine function.
        interface="asgi3",
        lifespan="off",
        ws="none",
        access_log=False,
        # Uvicorn logs an invalid request as a warning, so anyone could fill the log.
        log_level="error",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=10,
    )


class _AdmissionConfig(uvicorn.Config):
    """Uvicorn's configuration of a server that counts connections when they arrive, before TLS."""

    @override
    def load(self) -> None:
        super().load()
        # `Arrival` adds TLS itself, after it has counted the connection.
        tls, self.ssl = self.ssl, None
        admission = Admission(min(MOST_UNPROVEN, raise_file_limit() // 2))

        def arrival(**of_connection: Any) -> Arrival:
            return Arrival(admission, tls, lambda: PatientProtocol(**of_connection))

        self.http_protocol_class = arrival  # type: ignore[assignment]


class _Server(uvicorn.Server):
    """Calls `started` once the server accepts requests, and runs its further processes."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], further: FurtherProcesses | None
    ) -> None:
        super().__init__(config)
        self._on_started = started
        self._further = further

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._further is not None:
            self._sockets = sockets = await self._bind()
            # This process begins to accept connections last. Otherwise, clients that wait for the
            # server would all connect to this process.
            await self._further.start(sockets)
        await super().startup(sockets)
        if self.started:
            # The function sends this server a request, so it must not keep the event loop waiting.
            await asyncio.to_thread(self._on_started)

    async def _bind(self) -> list[socket.socket]:
        """Return sockets that are bound to the server's address but are not listening yet."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                asyncio.Protocol, self.config.host, self.config.port, start_serving=False
            )
        except OSError as error:
            log.error(error)
            sys.exit(1)
        sockets: list[socket.socket] = []
        for bound in server.sockets:
            sockets.append(socket.socket(fileno=os.dup(bound.fileno())))
        server.close()
        return sockets

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._further is not None:
            self._further.begin_stop()
            sockets = self._sockets
        await super().shutdown(sockets)
        if self._further is not None:
            # Uvicorn then ends this process with the signal that it has received. The further
            # processes end together with this process, so it has to wait until they have answered
            # their requests.
            patience_s = 0.0 if self.force_exit else STOP_SECONDS
            await asyncio.to_thread(self._further.end, patience_s)


class _WithState:
    """Passes the process's state to an app that is mounted under a prefix."""

    def __init__(self, app: ASGIApp, state: ApiState, prefix: str) -> None:
        self._app = app
        self._state = state
        self._prefix = prefix

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope["state"][API_STATE] = self._state
        scope["root_path"] = scope.get("root_path", "") + self._prefix
        return self._app(scope, receive, send)


class _Mounts:
    """Dispatches a request to the app mounted under the first segment of its path."""

    def __init__(self, apps: dict[str, ASGIApp]) -> None:
        self._apps = apps

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        prefix = "/" + scope["path"][1:].partition("/")[0]
        app = self._apps.get(prefix)
        return (app or not_found())(scope, receive, send)
