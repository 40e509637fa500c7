"""The interface through which the API lists and starts runs of pipelines in Airflow.

A state server has no runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sluice.answers import Run
from sluice.errors import Refused
from sluice.values.phrases import counted, listed


@dataclass(frozen=True)
class PoolWait:
    """A task that waits for a slot of its pool."""

    pool: str
    slots: int
    """The number of slots that the pool has; -1 if it has no limit."""
    since: datetime
    holders: tuple[str, ...] = ()
    """The tasks that occupy slots of the pool, such as `long_task of other_team (3 slots since
    15:11:21 UTC)`."""
    taken: int = 0
    """The number of slots that these tasks occupy."""

    @property
    def detail(self) -> str:
        """Which slot the task is waiting for, and the tasks that occupy the pool."""
        begin = f"Its task waits for a slot of the pool {self.pool}"
        if not self._is_full:
            return f"{begin}, which has free slots."
        if not self.slots:
            return f"{begin}, which has no slots."
        return f"{begin}. All {counted(self.slots, 'slot')} are taken by {listed(self.holders)}."

    @property
    def next_step(self) -> str:
        """What to do so that the task gets a slot."""
        if not self._is_full:
            return "Look at Airflow's own limits, such as core.parallelism, and at its scheduler."
        if not self.slots:
            return f"Give the pool {self.pool} slots in Airflow."
        return (
            "Wait until these tasks have ended, end one of them, or give the pool "
            f"{self.pool} more slots in Airflow."
        )

    @property
    def _is_full(self) -> bool:
        return 0 <= self.slots <= self.taken


@dataclass(frozen=True)
class DagState:
    """The state of a pipeline's DAG."""

    paused: bool
    last_run: Run | None
    waits: PoolWait | None = None
    """What the task of the last run waits for; None if it does not wait for a slot."""
    attempts_left: int | None = None
    """How many attempts Airflow has left for the last run's task; None if no attempt has ended, or
    if one is running."""
    tags: tuple[str, ...] = ()
    """The DAG's tags apart from Sluice's own, sorted."""
    owner: str = ""
    marked_by: str = ""
    """The user who marked the last run as failed; empty if nobody did, or if Airflow does not know
    who it was."""


class Runs(Protocol):
    """The runs of pipelines. All methods block."""

    root: str
    """The URL path of Airflow; empty for `/`."""

    def dags(self) -> Mapping[str, DagState]:
        """Return the state of each pipeline's DAG."""

    def recent(self, pipeline: str, limit: int) -> list[Run]:
        """Return the newest runs of a pipeline, newest first."""

    def start(self, pipeline: str, parameters: Mapping[str, Any], user: str) -> str:
        """Start a run and return its id.

        Raise QueryError if the DAG does not accept the parameters.
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
