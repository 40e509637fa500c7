"""The job's lease, as the Spark driver holds it: taken before anything is written, renewed while the driver works.

A driver that finds the lease held

- takes it at once if the holder is a process of this machine that is no more;
- takes it if the holder has not renewed it for `silence_s`;
- waits for a holder that works for the same run, the driver that a killed task has left behind, until it is done, but
  not longer than `orphan_s`: then it takes the lease away from it;
- is refused if the holder lives and works for another run.

A driver whose lease has been taken away cannot publish: its epoch is too old for the ledger's transaction and for the
workers' shards, and its Kafka producer is fenced by the one that came after it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from sluice.errors import LeaseError, StateError
from sluice.state.ledger.leases import Holder, LeaseRow, Leases, lost
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef

log = structlog.get_logger()


@dataclass(frozen=True)
class Patience:
    """How often a lease is renewed, and how long others wait; seconds of a clock that never steps."""

    beat_s: float = 2.0
    silence_s: float = 20.0
    """A holder that has not renewed for so long is taken for dead. It must be several times `beat_s`."""
    orphan_s: float = 300.0
    """As long as that the next try of a run waits for the driver that the one before has left behind."""


PATIENCE = Patience()


def this_process(run: str) -> Holder:
    """This process as a holder that works for a run."""
    pid = os.getpid()
    return Holder(host=socket.gethostname(), pid=pid, process=f"{_machine()}/{_started(pid)}", run=run)


@dataclass
class Lease:
    """The lease of one generation of a job. Use as a context manager: entering takes it, or raises LeaseError."""

    leases: Leases
    ref: JobRef
    holder: Holder
    patience: Patience = PATIENCE

    def __post_init__(self) -> None:
        self._row: LeaseRow | None = None
        self._lost = threading.Event()
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def epoch(self) -> int:
        """Goes up with every holder; what bears an older one is refused."""
        return self.row.epoch

    @property
    def row(self) -> LeaseRow:
        """The lease as it was taken."""
        assert self._row is not None
        return self._row

    def check(self) -> None:
        """Raise LeaseError if the lease is known to be lost: there is no use in going on."""
        if self._lost.is_set():
            raise lost(self.leases.get(self.ref), self.epoch)

    def require(self) -> None:
        """Raise LeaseError unless the ledger says that the lease is still held."""
        row = self._seen()
        if row is None or row.epoch != self.epoch or not row.held:
            raise lost(row, self.epoch)

    def __enter__(self) -> Self:
        self._row = self._take()
        self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._renewing.join()
        try:
            if self._row is not None and not self._lost.is_set():
                self.leases.release(self._row)
        except StateError as failed:
            # What is held by a process that is gone is taken by the next one; there may be an error to be raised.
            log.warning("lease not released", why=failed.detail)

    def _take(self) -> LeaseRow:
        begun = changed = time.monotonic()
        seen = self._seen()
        first = seen
        while True:
            now = time.monotonic()
            why = self._may_take(seen, now - changed, now - begun)
            if why and (taken := self.leases.take(self.ref, self.holder, seen)):
                if seen is not None and seen.held:
                    log.warning("lease taken over", why=why, holder=str(seen), epoch=taken.epoch)
                return taken
            if seen is not None and self._is_refused(seen, first):
                raise self._refused(seen)
            if not why:
                time.sleep(self.patience.beat_s / 4)
            before, seen = seen, self._seen()
            if seen != before:
                changed = time.monotonic()

    def _may_take(self, seen: LeaseRow | None, silent: float, waited: float) -> str:
        """Why the lease may be taken now; empty if it may not."""
        if seen is None or not seen.held:
            return "free"
        if is_gone(seen):
            return "its process is gone"
        if silent >= self.patience.silence_s:
            return f"silent for {silent:.0f} s"
        if self._is_orphan(seen) and waited >= self.patience.orphan_s:
            return f"waited {waited:.0f} s for the driver that this run has left behind"
        return ""

    def _is_refused(self, seen: LeaseRow, first: LeaseRow | None) -> bool:
        """Whether the holder works for another run and was seen to live: since the first look its beat has changed."""
        return seen.held and not self._is_orphan(seen) and seen != first

    def _is_orphan(self, seen: LeaseRow) -> bool:
        return bool(seen.run) and seen.run == self.holder.run

    def _seen(self) -> LeaseRow | None:
        return self.leases.get(self.ref)

    def _refused(self, seen: LeaseRow) -> LeaseError:
        return LeaseError(
            f"Job {self.ref.job!r} of pipeline {self.ref.pipeline!r} is being worked on by another driver: {seen}.",
            next_step="Let it finish, or end that process; its lease is free "
            f"{self.patience.silence_s:.0f} s after its last sign of life.",
        )

    def _renew(self) -> None:
        assert self._row is not None
        while not self._done.wait(self.patience.beat_s):
            try:
                if not self.leases.beat(self._row):
                    self._lost.set()
                    log.error("lease lost", epoch=self.epoch)
                    return
            except StateError as failed:
                # It may be restarting. If this lasts, another driver takes over, and the ledger knows it.
                log.warning("lease not renewed", why=failed.detail)


@contextmanager
def current_lease(
    ledger: Ledger, pipeline: str, job: str, holder: Holder, patience: Patience = PATIENCE, only: int | None = None
) -> Iterator[Lease]:
    """The lease of the generation that readers see, which no other one replaces as long as it is held.

    Before there is any generation, the lease of the first. LeaseError if `only` is not the one that readers see.
    """
    while True:
        generation = only or ledger.jobs.generation(pipeline, job) or 1
        with Lease(ledger.leases, JobRef(pipeline, job, generation), holder, patience) as lease:
            seen = ledger.jobs.generation(pipeline, job)
            if seen in (None, generation):
                yield lease
                return
        if only is not None:
            raise LeaseError(
                f"Generation {only} of job {job!r} of pipeline {pipeline!r} was replaced by generation {seen} in a "
                "rebuild.",
                next_step="Run the job again.",
            )
        # A rebuild has ended meanwhile: this was the lease of a generation that it has replaced.


def is_gone(row: LeaseRow) -> bool:
    """Whether the holder was a process of this very machine, and is certainly no more."""
    machine, _, started = row.process.rpartition("/")
    return bool(machine) and machine == _machine() and _started(row.pid) != started


def _machine() -> str:
    """This machine since it was booted, and the space in which its process ids count; empty where that is unknown."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process was started, in ticks since boot, which no step of the clock changes; empty if it is gone."""
    try:
        state, *after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie's parent has not asked for it yet, but it will never write again.
    return "" if state in ("Z", "X") else after[18]
