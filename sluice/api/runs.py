"""The interface through which the API lists and starts runs of pipelines in Airflow.

A state server has no runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from sluice.answers import Run
from sluice.errors import NoSlot, Refused
from sluice.state.ledger.failures import SLOT_SECONDS, Failure


@dataclass(frozen=True)
class DagState:
    """The state of a pipeline's DAG."""

    paused: bool
    last_run: Run | None
    pool: str = ""
    """The pool in which the task of the last run waits for a free slot; empty if the task does not wait."""
    waits_since: datetime | None = None
    """Since when the task waits for a slot."""

    def waits_for_slot(self, pipeline: str, now: datetime | None = None) -> Failure | None:
        """The failure of a pipeline whose task has waited long for a slot of its pool; None if it has not."""
        since, now = self.waits_since, now or datetime.now(UTC)
        if since is None or (now - since).total_seconds() < SLOT_SECONDS:
            return None
        error = NoSlot(
            f"Its task waits for a slot of the pool {self.pool}.",
            next_step=f"Give the pool {self.pool} more slots in Airflow, or wait until other runs have ended.",
        )
        return msgspec.structs.replace(Failure.of(error, pipeline, kind="slot"), at=since)


class Runs(Protocol):
    """The runs of pipelines. All methods block."""

    root: str
    """The URL path of Airflow; empty for `/`."""

    def dags(self) -> Mapping[str, DagState]:
        """Pipeline → the state of its DAG."""

    def recent(self, pipeline: str, limit: int) -> list[Run]:
        """The newest runs of a pipeline, newest first."""

    def start(self, pipeline: str, parameters: Mapping[str, Any], user: str) -> str:
        """Start a run and return its id.

        Raises QueryError if the DAG does not accept the parameters.
        """


class NoRuns:
    """The runs of a state server: none, because it runs without Airflow."""

    root = ""

    def dags(self) -> Mapping[str, DagState]:
        return {}

    def recent(self, _pipeline: str, _limit: int) -> list[Run]:
        return []

    def start(self, _pipeline: str, _parameters: Mapping[str, Any], _user: str) -> str:
        raise Refused(
            "A state server cannot start runs.",
            next_step="Send the request to Airflow's API server.",
        )


NO_RUNS = NoRuns()
