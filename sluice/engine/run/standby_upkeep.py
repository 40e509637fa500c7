"""Refreshes the standbys of a pipeline after each run, and promotes them if a shard is lost."""

from __future__ import annotations

import time
from collections.abc import Iterable

import structlog

from sluice.engine.run.driver_lease import Lease, current_lease, this_process
from sluice.errors import DamagedState, LeaseError, NotFound, Refused, StateError
from sluice.state.ledger.ledger import Ledger
from sluice.state.remote.standby_copies import (
    FailedRefresh,
    promote_lost_standbys,
    refresh_standbys,
)

log = structlog.get_logger()

PAUSE_SECONDS = 60.0
_SHARE = 10
"""A lingering run spends at most 1 / `_SHARE` of its time on refreshing standbys."""


class StandbyCopies:
    """Refreshes the standbys of a run's generation.

    Errors are only logged, because the run's results have already been published.
    """

    def __init__(self, ledger: Ledger, lease: Lease) -> None:
        self._ledger = ledger
        self._lease = lease
        self._due_at = time.monotonic() + PAUSE_SECONDS

    def refresh_if_due(self) -> None:
        """Refresh the standbys of a lingering run, unless they were refreshed recently."""
        if time.monotonic() >= self._due_at:
            self.refresh()

    def refresh(self) -> None:
        """Refresh the standbys that do not hold the newest snapshot."""
        ref, begun = self._lease.ref, time.monotonic()
        of = {"pipeline": ref.pipeline}
        try:
            for done in refresh_standbys(self._ledger, ref, self._lease.epoch, only_behind=True):
                if isinstance(done, FailedRefresh):
                    log.warning(
                        "standby not refreshed",
                        **of,
                        worker=done.worker,
                        why=str(done.error),
                    )
                    continue
                snapshot = f"{ref.generation}.{done.batch}"
                log.info(
                    "standby refreshed",
                    **of,
                    worker=done.worker,
                    snapshot=snapshot,
                    versions=done.copied,
                )
                if done.why_whole:
                    log.warning("standby copied anew", **of, worker=done.worker, why=done.why_whole)
        except (StateError, LeaseError) as error:
            log.warning("standbys not refreshed", **of, why=str(error))
        took = time.monotonic() - begun
        # A refresh reads the whole copy, so it takes longer for a larger shard. After a long
        # refresh, pause for longer.
        self._due_at = time.monotonic() + max(PAUSE_SECONDS, took * (_SHARE - 1))


def promote_standbys(ledger: Ledger, pipeline: str, run: str, why: StateError) -> str:
    """Promote the standbys of workers whose shards are damaged or whose servers are silent.

    Return the reason why the standbys cannot replace the workers; an empty text if they have
    replaced them.
    """
    if not ledger.standbys.of(pipeline):
        return "There is no standby."
    lost: Iterable[int] | None = None
    if isinstance(why, DamagedState):
        if not why.workers:
            return "The damage is not in a worker's shard."
        lost = why.workers
    try:
        with current_lease(ledger, pipeline, this_process(run)) as lease:
            notes = promote_lost_standbys(ledger, lease.ref, lease.epoch, lost, run, why.detail)
    except (NotFound, Refused, StateError) as error:
        return str(error)
    for note in notes:
        log.warning("standby promoted", pipeline=pipeline, note=note)
    return ""
