"""A small client of Airflow's REST API and of its plugins."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import httpx

from sluice.errors import EngineError

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class LogIn:
    """A user of Airflow's simple auth manager."""

    user: str
    password: str = field(repr=False)


class Airflow:
    """Airflow at `url`, as one user. Not thread-safe."""

    def __init__(self, url: str, log_in: LogIn | None = None) -> None:
        self.url = url
        self.token = ""
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False)
        if log_in is not None:
            self._log_in(log_in)

    def close(self) -> None:
        self._client.close()

    def unhealthy(self) -> list[str]:
        """Return the components that are not healthy.

        If the API server does not answer, return only this server.
        """
        try:
            answer = self._client.get("/api/v2/monitor/health", timeout=5.0)
        except httpx.TransportError:
            return ["API server"]
        if answer.status_code != httpx.codes.OK:
            return ["API server"]
        states = answer.json()
        components = ("scheduler", "dag_processor", "triggerer")
        return [
            name.replace("_", " ") for name in components if states[name]["status"] != "healthy"
        ]

    def ask(self, path: str, **parameters: Any) -> httpx.Response:
        """GET a path as the user."""
        return self._client.get(path, params=parameters or None, headers=self._headers())

    def json(self, path: str, **parameters: Any) -> Any:
        """GET JSON, with decimal numbers as Decimal.

        Raises EngineError unless the status is 200.
        """
        answer = self.ask(path, **parameters)
        if answer.status_code != httpx.codes.OK:
            raise EngineError(f"GET {path} returned {answer.status_code}: {answer.text[:500]}")
        try:
            return json.loads(answer.content, parse_float=Decimal)
        except json.JSONDecodeError:
            # At a path that no plugin serves, Airflow answers with an HTML page and status 200.
            raise EngineError(
                f"GET {path} returned no JSON.", next_step="Check that Airflow lists the plugin."
            ) from None

    def trigger(self, dag: str, conf: dict[str, Any] | None = None) -> str:
        """Trigger a run of a DAG, and return the run's id."""
        body = {"logical_date": None, "conf": conf or {}}
        answer = self._client.post(
            f"/api/v2/dags/{dag}/dagRuns", json=body, headers=self._headers()
        )
        if answer.status_code != httpx.codes.OK:
            raise EngineError(
                f"Triggering {dag} returned {answer.status_code}: {answer.text[:500]}"
            )
        return str(answer.json()["dag_run_id"])

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG, oldest first; empty while Airflow has not loaded the DAG."""
        answer = self.ask(f"/api/v2/dags/{dag}/dagRuns", order_by="run_after", limit=100)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return []
        runs: list[dict[str, Any]] = answer.raise_for_status().json()["dag_runs"]
        return runs

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the task instances of a run."""
        tasks: list[dict[str, Any]] = self.json(f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")[
            "task_instances"
        ]
        return tasks

    def log(self, dag: str, run: str, task: str, attempt: int) -> str:
        """Return a task's log as text."""
        answer = self._client.get(
            f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{attempt}",
            headers={**self._headers(), "Accept": "application/x-ndjson"},
        )
        return answer.text

    def _log_in(self, log_in: LogIn) -> None:
        answer = self._client.post(
            "/auth/token", json={"username": log_in.user, "password": log_in.password}
        )
        if answer.status_code not in (httpx.codes.OK, httpx.codes.CREATED):
            raise EngineError(
                f"Airflow refused the log-in of {log_in.user}: {answer.status_code}.",
                next_step="Correct the user name or the password.",
            )
        self.token = str(answer.json()["access_token"])

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}
