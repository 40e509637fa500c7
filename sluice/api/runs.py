"""Runs of pipelines in Airflow: what the API shows of them, and starts. A state server has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.answers import Run
from sluice.errors import Refused


@dataclass(frozen=True)
class DagState:
    """A pipeline's DAG."""

    paused: bool
    last_run: Run | None


class Runs(Protocol):
    """The runs of pipelines. Its methods block."""

    root: str
    """The path under which Airflow is served; empty for `/`."""

    def dags(self) -> Mapping[str, DagState]:
        """Pipeline → its DAG."""

    def recent(self, pipeline: str, limit: int) -> list[Run]:
        """The newest runs of a pipeline, newest first."""

    def start(self, pipeline: str, parameters: Mapping[str, Any], user: str) -> str:
        """Start a run with parameters. Returns its name. Raises QueryError if the DAG does not take them."""


class NoRuns:
    """A state server's: without Airflow there are no runs."""

    root = ""

    def dags(self) -> Mapping[str, DagState]:
        return {}

    def recent(self, _pipeline: str, _limit: int) -> list[Run]:
        return []

    def start(self, _pipeline: str, _parameters: Mapping[str, Any], _user: str) -> str:
        raise Refused("A state server starts no runs.", next_step="Send the request to Airflow's API server.")


NO_RUNS = NoRuns()
