"""Waits for a schema registry that cannot be reached, as a run waits for brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from sluice.engine.run.driver_lease import Lease
from sluice.errors import RegistryAway, StateError
from sluice.plan import Job
from sluice.registry.registry import Registry, UnknownSchemaError
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger

log = structlog.get_logger()

PATIENCE_S = 300.0
"""How long a run waits without reading any record. After this time, the run fails, and is started
again."""
FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 15.0
_STEP_S = 0.5


@dataclass
class RegistryWait:
    """Waits for one run. In the meantime, the ledger shows that the run is waiting."""

    job: Job
    registry: Registry
    ledger: Ledger
    lease: Lease
    run: str
    """The Airflow run; empty for a run that was started manually."""
    _since: float | None = field(default=None, init=False)
    """When the run has begun to wait; None after it has read records."""
    _pause_s: float = field(default=FIRST_PAUSE_S, init=False)

    def begin(self) -> None:
        """Wait if the ledger says that an earlier run could not reach the registry."""
        if next(_subjects(self.job), None) is None:
            return
        name = self.job.pipeline.name
        failures = self.ledger.failures.of(name)
        if not any(failure.kind == "registry" for failure in failures):
            return
        away = self._why_away()
        if away is None:
            self.ledger.failures.clear(name, "registry")
        else:
            self.wait(away, has_read=False)

    def wait(self, away: RegistryAway, *, has_read: bool) -> None:
        """Wait until the registry answers. Raise the error after `PATIENCE_S`.

        `has_read`: whether the run has read records since it last waited.
        """
        name = self.job.pipeline.name
        if has_read or self._since is None:
            self._since, self._pause_s = time.monotonic(), FIRST_PAUSE_S
        log.warning("waiting for the registry", pipeline=name, why=away.detail)
        reason: RegistryAway | None = away
        while reason is not None:
            if time.monotonic() - self._since >= PATIENCE_S:
                raise reason
            with suppress(StateError):  # The lease reports that the ledger cannot be reached.
                failure = Failure.of(reason, name, run=self.run, kind="registry")
                self.ledger.failures.keep(failure)
            self._pause()
            reason = self._why_away()
        self.ledger.failures.clear(name, "registry")

    def _pause(self) -> None:
        until = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        while (left := until - time.monotonic()) > 0:
            self.lease.check()
            time.sleep(min(_STEP_S, left))

    def _why_away(self) -> RegistryAway | None:
        """Ask the registry about a topic. Return why it does not answer; None if it does."""
        subject = next(_subjects(self.job), None)
        if subject is None:
            return None
        try:
            self.registry.version(subject)
        except RegistryAway as away:
            return away
        except UnknownSchemaError:
            pass
        return None


def _subjects(job: Job) -> Iterator[str]:
    for source, of_source in job.registered_sources():
        yield of_source.subject_in(source.topic)
    for sink, of_sink in job.registered_sinks():
        yield of_sink.subject_in(sink.topic)
