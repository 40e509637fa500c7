"""The lease of a generation.

The driver takes the lease before it writes, and renews the lease until its end. If another driver,
the holder, has the lease:

- If the holder was a process of this machine and has ended, the driver takes the lease immediately.
- If the holder has not renewed the lease for `silence_s`, the driver takes the lease.
- If the holder works for the same run, its task was killed and the driver is the task's retry. The
  driver waits for the holder's end, but takes the lease over after `orphan_s`.
- If the holder is alive and works for another run, the driver fails with LeaseError. If `waits` is
  set, the driver waits for the holder's end instead of failing.

A driver that has lost its lease can no longer publish. Its epoch is too old for the ledger's
transaction and for the workers' shards, and the new holder's Kafka producer fences the driver's
producer.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from sluice.errors import LeaseError, StateError, WaitsForLease
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.leases import Holder, LeaseRow, Leases, lost
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef

log = structlog.get_logger()


@dataclass(frozen=True)
class Patience:
    """How often a lease is renewed, and how long other drivers wait for it.

    In seconds of the monotonic clock.
    """

    beat_s: float = 2.0
    silence_s: float = 20.0
    """A holder is presumed dead if it has not renewed the lease for this time, which must be
    several times `beat_s`."""
    orphan_s: float = 300.0
    """How long a retry of a run waits for the driver of the previous try, if that driver is still
    running."""
    waits: bool = False
    """Whether to wait without a limit for the end of another run."""


PATIENCE = Patience()
NOTED_AFTER_S, NOTED_EVERY_S = 5.0, 60.0
BETWEEN_RUNS = Patience(waits=True)
"""The patience of commands that need the lease only briefly, and may be started during a run."""


def this_process(run: str) -> Holder:
    """Return the description of this process as a holder that works for a run."""
    pid = os.getpid()
    return Holder(
        host=socket.gethostname(),
        pid=pid,
        process=f"{_machine()}/{_start_time(pid)}",
        run=run,
    )


@dataclass
class Lease:
    """The lease of a generation. As a context manager, it takes the lease or raises LeaseError."""

    leases: Leases
    ref: GenerationRef
    holder: Holder
    patience: Patience = PATIENCE
    on_wait: Callable[[LeaseRow], None] | None = None
    """Called every `NOTED_EVERY_S` while this driver waits for a holder, for the first time after
    `NOTED_AFTER_S`."""

    def __post_init__(self) -> None:
        self._row: LeaseRow | None = None
        self._lost = threading.Event()
        self._done = threading.Event()
        self._changing = threading.Lock()
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    @property
    def epoch(self) -> int:
        """A number that grows with every holder. Writes with an older epoch are refused."""
        return self.row.epoch

    @property
    def row(self) -> LeaseRow:
        """The lease's row in the ledger, as it was when this driver took the lease."""
        assert self._row is not None
        return self._row

    def check(self) -> None:
        """Raise LeaseError if renewing the lease has failed because another driver holds it."""
        if self._lost.is_set():
            raise lost(self.leases.get(self.ref), self.epoch)

    def outrank(self, epoch: int) -> None:
        """Take an epoch above `epoch`, the epoch of another lease under which a shard was written.

        Raise LeaseError if the lease is no longer held.
        """
        with self._changing:
            self._row = self.leases.outrank(self.row, epoch)

    def require_in_ledger(self) -> None:
        """Raise LeaseError unless the lease is still held according to the ledger."""
        row = self._current_row()
        if row is None or row.epoch != self.epoch or not row.held:
            raise lost(row, self.epoch)

    def __enter__(self) -> Self:
        self._row = self._take()
        self._renewing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Stop the renewals first: a renewal after the release would fail, and would be reported as
        # the loss of the lease.
        self._done.set()
        self._renewing.join()
        try:
            if self._row is not None and not self._lost.is_set():
                self.leases.release(self._row)
        except StateError as failed:
            # Do not raise an error, because it would hide an error of the `with` block. The next
            # driver can take the lease of an ended process.
            log.warning("lease not released", why=failed.detail)

    def _take(self) -> LeaseRow:
        # Use only this machine's monotonic clock: the clocks of two machines differ, and a clock
        # may be set.
        begun = changed = time.monotonic()
        seen = self._current_row()
        first, is_waiting = seen, False
        next_note = begun + NOTED_AFTER_S
        while True:
            now = time.monotonic()
            why = self._reason_to_take(seen, now - changed, now - begun)
            if why and (taken := self.leases.take(self.ref, self.holder, seen)):
                if seen is not None and seen.held:
                    log.warning("lease taken over", why=why, holder=str(seen), epoch=taken.epoch)
                return taken
            # If the lease's row has changed since the first reading, its holder has renewed the
            # lease, and is alive.
            if seen is not None and self._is_refused(seen, first):
                if not self.patience.waits:
                    raise self._refusal(seen)
                if not is_waiting:
                    is_waiting = True
                    log.info(
                        "waiting for the end of a run",
                        pipeline=self.ref.pipeline,
                        holder=str(seen),
                    )
            if self.on_wait is not None and seen is not None and now >= next_note:
                next_note = now + NOTED_EVERY_S
                self.on_wait(seen)
            if not why:
                time.sleep(self.patience.beat_s / 4)
            # Another driver may have taken the lease meanwhile, or the holder may have renewed it.
            before, seen = seen, self._current_row()
            if seen != before:
                changed = time.monotonic()

    def _reason_to_take(self, seen: LeaseRow | None, silent: float, waited: float) -> str:
        """Return the reason why the lease may be taken now; empty if it may not."""
        if seen is None or not seen.held:
            return "free"
        if is_gone(seen):
            return "its process has ended"
        # A holder on another host may be dead, or only paused. Its epoch keeps it from publishing
        # later.
        if silent >= self.patience.silence_s:
            return f"silent for {silent:.0f} s"
        # If a task is killed, its driver may continue to run. Airflow's retry works for the same
        # run, and waits for this driver, but not forever.
        if self._is_orphan(seen) and waited >= self.patience.orphan_s:
            return f"waited {waited:.0f} s for a driver of the same run"
        return ""

    def _is_refused(self, seen: LeaseRow, first: LeaseRow | None) -> bool:
        """Return whether a holder for another run has renewed the lease since `first` was read."""
        return seen.held and not self._is_orphan(seen) and seen != first

    def _is_orphan(self, seen: LeaseRow) -> bool:
        return bool(seen.run) and seen.run == self.holder.run

    def _current_row(self) -> LeaseRow | None:
        return self.leases.get(self.ref)

    def _refusal(self, seen: LeaseRow) -> LeaseError:
        return LeaseError(
            f"Another driver is running {self.ref.pipeline!r}: {seen}.",
            next_step="Wait until that driver has finished, or end its process. The lease "
            f"becomes free {self.patience.silence_s:.0f} s after the last renewal.",
        )

    def _renew(self) -> None:
        while not self._done.wait(self.patience.beat_s):
            try:
                with self._changing:
                    is_held = self.leases.renew(self.row)
                if not is_held:
                    self._lost.set()
                    log.error("lease lost", epoch=self.epoch)
                    return
            except StateError as failed:
                # The ledger's database may be restarting. If no renewal succeeds for `silence_s`,
                # another driver can take the lease over.
                log.warning("lease not renewed", why=failed.detail)


@contextmanager
def current_lease(
    ledger: Ledger,
    pipeline: str,
    holder: Holder,
    patience: Patience = PATIENCE,
    only: int | None = None,
) -> Iterator[Lease]:
    """Yield the lease of the current generation; of generation 1 if the pipeline has never run.

    The generation stays current while the lease is held. Raise LeaseError if `only` is not the
    current generation, and Refused if the pipeline has another name now.
    """

    def note(seen: LeaseRow) -> None:
        log.warning("waiting for the lease", pipeline=pipeline, holder=str(seen))
        error = WaitsForLease(f"A driver on {holder.host} waits for {seen}.")
        with suppress(StateError):  # The driver itself reports that the ledger cannot be reached.
            ledger.failures.keep(Failure.of(error, pipeline, run=holder.run, kind="lease"))

    ledger.require_usable()
    while True:
        generation = only or ledger.generations.current_number(pipeline) or 1
        with Lease(
            ledger.leases, GenerationRef(pipeline, generation), holder, patience, note
        ) as lease:
            ledger.failures.clear(pipeline, "lease")
            ledger.renames.require_current(pipeline)
            # A rebuild may have promoted another generation while this driver waited for the lease.
            current = ledger.generations.current_number(pipeline)
            if current in (None, generation):
                yield lease
                return
        if only is not None:
            raise LeaseError(
                f"Generation {only} of {pipeline!r} was replaced by generation {current} in a "
                "rebuild.",
                next_step="Run the pipeline again.",
            )


def is_gone(row: LeaseRow) -> bool:
    """Return whether the holder was a process of this machine and has certainly ended."""
    machine, _, started = row.process.rpartition("/")
    # Process ids of another machine or container have no meaning here.
    if not (machine and started) or machine != _machine():
        return False
    # `/proc` may hide other users' processes (its mount option `hidepid`). For such a process, only
    # the id can be checked.
    if _is_visible(row.pid):
        return _start_time(row.pid) != started
    return not _exists(row.pid)


def _machine() -> str:
    """Return the machine's boot id and process-id namespace; empty if they are unknown."""
    # The containers of a host have the same boot id, but each container numbers its processes from
    # 1. So the namespace of the process ids is needed, too.
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _is_visible(pid: int) -> bool:
    return os.access(f"/proc/{pid}/stat", os.R_OK)


def _exists(pid: int) -> bool:
    """Return whether a process with this id exists.

    The process may be another one that has got the same id.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        pass
    return True


def _start_time(pid: int) -> str:
    """Return a process's start time in ticks since boot; empty if it is not visible.

    Changes of the clock do not affect this time.
    """
    try:
        # The process's name is in parentheses, and may itself contain spaces and parentheses.
        state, *after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # A zombie process has ended; its parent has not collected its status yet.
    if state in ("Z", "X"):
        return ""
    return after[18]
