"""The interface through which the API lists and starts runs of pipelines in Airflow.

A state server has no runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.answers import Run
from sluice.errors import Refused


@dataclass(frozen=True)
class DagState:
    """The state of a pipeline's DAG."""

    paused: bool
    last_run: Run | None


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
