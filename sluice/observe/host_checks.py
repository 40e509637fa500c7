"""Checks of this host: whether state servers answer it, its disks have space, its clock is right.

Triggers, state servers and `sluice status` make these checks. They record problems as failures in
the ledger, so that all of them report the same time at which a failure began.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from sluice.answers import FailureKind
from sluice.errors import ClockOff, DiskNearlyFull, HostSilent, ServerHangs, SluiceError, StateError
from sluice.observe.monitoring import LedgerFigures
from sluice.settings import Settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo
from sluice.state.remote.server_identity import fetch_card
from sluice.state.shard.addresses import file_of
from sluice.values.host_ports import address_of
from sluice.values.phrases import size_text

OBSERVING_SECONDS = 20.0
CLOCK_SECONDS = 5.0
"""A host's clock is off if it differs from the database's clock by more than this time."""
_FREE_SHARE, _LEAST_FREE, _MOST_NEEDED = 0.05, 2**30, 20 * 2**30
"""A disk is nearly full if less than 5 % of the disk or less than 1 GiB is free. A disk with 20 GiB
or more free is never nearly full."""

_MOST_THREADS = 16


class Sight(NamedTuple):
    """A problem that a host has noticed."""

    kind: FailureKind
    host: str
    error: SluiceError


def check_hosts(ledger: Ledger, figures: LedgerFigures, configuration: Settings) -> None:
    """Record what is wrong as failures of the pipelines concerned, and remove past failures."""
    own_host = socket.gethostname()
    silent, unknown = _look_at_servers(_servers(figures.generations.values()))
    own_clock = list(_clock(own_host, ledger))
    of_host = [*_disks(own_host, configuration), *own_clock]
    seen: list[Failure] = []
    gone: list[Failure] = []
    for pipeline, info in figures.generations.items():
        sights = of_host.copy()
        for address in _servers([info]):
            if address in silent:
                sights.append(silent[address])
        if not own_clock:
            sights += _snapshot_of_the_future(own_host, pipeline, figures)
        places: set[tuple[FailureKind, str]] = set()
        for kind, host, error in sights:
            places.add((kind, host))
            seen.append(
                Failure.of(error, pipeline, kind=kind, host=host, secrets=configuration.secrets)
            )
        for failure in figures.failures.get(pipeline, ()):
            # Only the host that has a disk or clock sees its failure, so only this host removes the
            # failure. The failure of a state server is removed by any host that can ask the server.
            if failure.kind == "host":
                is_observed = failure.host not in unknown
            else:
                is_observed = failure.kind in ("disk", "clock") and failure.host == own_host
            if is_observed and (failure.kind, failure.host) not in places:
                gone.append(failure)
    if seen:
        ledger.failures.keep(*seen)
    for failure in gone:
        ledger.failures.clear(failure.pipeline, failure.kind, host=failure.host)


class Observer:
    """Checks hosts in a server or a triggerer, in the background, every `OBSERVING_SECONDS`."""

    def __init__(self, ledger: Ledger, configuration: Settings) -> None:
        self._ledger = ledger
        self._configuration = configuration
        self._next = 0.0
        self._observing: asyncio.Task[None] | None = None

    def observe(self) -> None:
        """Begin a check, unless one is running or began in the last `OBSERVING_SECONDS`.

        Must be called in an event loop.
        """
        is_busy = self._observing is not None and not self._observing.done()
        if time.monotonic() >= self._next and not is_busy:
            self._next = time.monotonic() + OBSERVING_SECONDS
            self._observing = asyncio.create_task(asyncio.to_thread(self._observe))

    def _observe(self) -> None:
        # An unreachable ledger is not reported here, because programs that need it report it.
        with suppress(SluiceError, OSError):
            check_hosts(self._ledger, LedgerFigures.read(self._ledger), self._configuration)


def needed_bytes(size: int) -> int:
    """Return the free bytes below which a disk of `size` bytes is nearly full."""
    return round(min(max(_FREE_SHARE * size, _LEAST_FREE), _MOST_NEEDED))


def disks(configuration: Settings) -> dict[Path, tuple[int, int]]:
    """Return the free bytes and the size of each disk with files of the ledger or of shards.

    The keys are folders on these disks.
    """
    usages: dict[Path, tuple[int, int]] = {}
    for url in (configuration.ledger, configuration.shards):
        file = file_of(url)
        if file is None:
            continue
        for folder in (file, *file.parents):
            if folder.is_dir():
                with suppress(OSError):
                    usage = shutil.disk_usage(folder)
                    usages[folder] = usage.free, usage.total
                break
    return usages


def _disks(own_host: str, configuration: Settings) -> Iterator[Sight]:
    for folder, (free, size) in disks(configuration).items():
        needed = needed_bytes(size)
        if free < needed:
            left = f"{own_host} has {size_text(free)} of {size_text(size)} left for {folder}"
            yield Sight("disk", own_host, DiskNearlyFull(f"{left}, and needs {size_text(needed)}."))
            # A host has one failure of its disks, even if the ledger's and the shards' disks are
            # full.
            return


def _clock(own_host: str, ledger: Ledger) -> Iterator[Sight]:
    ahead = ledger.clock_ahead_seconds()
    if abs(ahead) > CLOCK_SECONDS:
        direction = "ahead of" if ahead > 0 else "behind"
        error = ClockOff(
            f"The clock of {own_host} is {abs(ahead):,.0f} s {direction} the ledger's."
        )
        yield Sight("clock", own_host, error)


def _snapshot_of_the_future(
    own_host: str, pipeline: str, figures: LedgerFigures
) -> Iterator[Sight]:
    snapshot = figures.snapshots.get(pipeline)
    if snapshot is None:
        return
    ahead = snapshot.published_at - datetime.now(UTC)
    if ahead > timedelta(seconds=CLOCK_SECONDS):
        error = ClockOff(
            f"The publication time of snapshot {snapshot.id} is {ahead.total_seconds():,.0f} s "
            f"ahead of the clock of {own_host}. This clock or that of the driver's host is wrong."
        )
        yield Sight("clock", own_host, error)


def _servers(generations: Iterable[GenerationInfo]) -> dict[str, str]:
    """Return the URL of each state server, by HOST:PORT."""
    servers: dict[str, str] = {}
    for info in generations:
        for worker in info.workers:
            if worker.server:
                address = address_of(worker.host, worker.port)
                servers[address] = f"{urlsplit(worker.server).scheme}://{address}"
    return servers


def _look_at_servers(servers: Mapping[str, str]) -> tuple[dict[str, Sight], set[str]]:
    """Ask the state servers at these addresses and URLs for an answer.

    Returns what is wrong with each server that does not answer, by address. Also returns the
    addresses of the servers that this process cannot ask, because it has no token or they refuse
    its token.
    """
    silent: dict[str, Sight] = {}
    unknown: set[str] = set()
    if not servers:
        return silent, unknown
    with ThreadPoolExecutor(min(len(servers), _MOST_THREADS), "servers") as threads:
        errors = list(threads.map(_error_of, servers.values(), servers))
    for address, error in zip(servers, errors, strict=True):
        if isinstance(error, StateError):
            # Use HostSilent's own next step, except after ServerHangs. The next step of other
            # errors is to check the address, but here the address is from the ledger.
            next_step = error.next_step if isinstance(error, ServerHangs) else ""
            silent[address] = Sight("host", address, HostSilent(error.detail, next_step=next_step))
        elif error is not None:
            unknown.add(address)
    return silent, unknown


def _error_of(url: str, address: str) -> SluiceError | None:
    """Return the error of a request to a state server; None if it answers."""
    try:
        fetch_card(url, address, verify_certificate=False)
    except SluiceError as error:
        return error
    return None
