"""Determines a batch's time, on which the clocks of driver, broker and ledger must agree.

A driver whose clock is ahead would advance stream time too far while no records come, and all later
records would be late. A driver whose clock is behind would reject valid records because they seem
to come from the future. The clocks are compared when a run begins, and again once a minute or when
this machine's clock was set.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from sluice.errors import ClockOff, StateError
from sluice.kafka.broker_clock import milliseconds_ahead
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger

log = structlog.get_logger()

SAME_CLOCK_MS = 1_000
"""Clocks that differ by less than this count as equal, because each measurement takes some time."""
_COMPARED_S = 60.0
Ahead = Callable[[], int | None]
"""Returns how far this machine's clock is ahead of another clock, in ms; None if that is
unknown."""


@dataclass
class Clocks:
    """The clock of this machine, and other clocks with which it is compared."""

    others: Mapping[str, Ahead]
    """The owner of each other clock, such as "the broker" → the comparison with this clock."""
    on_difference: Callable[[str], None] = lambda _: None
    """Called after each comparison, with a description of the differences; empty if there are
    none."""
    _ahead: list[int] = field(default_factory=list, init=False)
    """How far this machine's clock is ahead of each other clock, in ms. Unknown clocks are left
    out."""
    _compared_at: float | None = field(default=None, init=False)
    """The monotonic time of the last comparison."""
    _set_by: float = field(default=0.0, init=False)
    """This machine's clock minus its monotonic clock, at the last comparison."""

    def now(self) -> int:
        """Return the time on which most clocks agree, epoch ms.

        If only two clocks are known and they differ, return the time of the broker or the database:
        many programs rely on it.
        """
        self._compare()
        known = self._ahead
        if len(known) != 1:
            known = [0, *known]
        return _milliseconds() - round(statistics.median_low(known))

    def earliest(self) -> int:
        """Return the time of the clock that is furthest behind, epoch ms.

        While no records come, stream time advances only up to this clock, so that no valid record
        is late.
        """
        self._compare()
        return _milliseconds() - max([0, *self._ahead])

    def _compare(self) -> None:
        now = time.monotonic()
        was_set = abs(time.time() - now - self._set_by) * 1_000 >= SAME_CLOCK_MS
        if self._compared_at is not None and now - self._compared_at < _COMPARED_S and not was_set:
            return
        self._compared_at, self._set_by = now, time.time() - now
        self._ahead = []
        differences: list[str] = []
        for owner, ahead_of in self.others.items():
            ahead = ahead_of()
            if ahead is None:
                continue
            if abs(ahead) < SAME_CLOCK_MS:
                ahead = 0
            self._ahead.append(ahead)
            if ahead:
                direction = "ahead of" if ahead > 0 else "behind"
                differences.append(f"{abs(ahead) / 1_000:,.1f} s {direction} that of {owner}")
        self.on_difference(" and ".join(differences))


def _milliseconds() -> int:
    return int(time.time() * 1_000)


def clocks_of_run(kafka: Mapping[str, str], markers: str, ledger: Ledger, pipeline: str) -> Clocks:
    """Return the clocks of a run.

    Differences are logged, and recorded as a failure of the driver's host.
    """

    def ahead_of_database() -> int | None:
        try:
            return round(ledger.clock_ahead_seconds() * 1_000)
        except StateError:
            return None  # The run itself reports that the ledger cannot be reached.

    others: dict[str, Ahead] = {"the broker": lambda: milliseconds_ahead(kafka, markers)}
    if ledger.has_clock:
        others["the ledger's database"] = ahead_of_database
    # State servers record failures of their own host's clock, too, so name the driver's host
    # differently.
    host = f"driver on {socket.gethostname()}"

    def report(differences: str) -> None:
        with suppress(StateError):
            if not differences:
                ledger.failures.clear(pipeline, "clock", host=host)
                return
            log.warning("clocks differ", pipeline=pipeline, driver=differences)
            error = ClockOff(f"The clock of the {host} is {differences}.")
            ledger.failures.keep(Failure.of(error, pipeline, kind="clock", host=host))

    return Clocks(others, report)
