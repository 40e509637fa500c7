"""The places where somebody on call looks: the page and REST, `sluice status`, the metrics, the alerts, and Airflow."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from sluice.local.airflow_client import Airflow
from sluice.local.platform import LocalPlatform

SLUICE = str(Path(sys.executable).with_name("sluice"))
Says = Callable[[], str]
"""What a place says about an incident in a few words; an empty text as long as it says nothing."""


@dataclass
class Places:
    """The places of one platform. Each method may be called from a thread of its own."""

    platform: LocalPlatform
    metrics: httpx.Client | None = None
    """A state server, with its token."""
    prometheus: httpx.Client | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def airflow(self) -> Airflow:
        """Airflow as the viewer, for the page."""
        return Airflow(self.platform.url, self.platform.viewer)

    def page(self, pipeline: str, kind: str, text: str = "") -> str:
        """The health of a pipeline that has a failure of a kind with this text.

        The page shows what this route answers.
        """
        for overview in self.overviews():
            if overview["pipeline"] == pipeline:
                for failure in overview["failures"]:
                    said = f"{failure['detail']} {failure['next_step']} {failure['outlook']}"
                    if failure["kind"] == kind and text in said:
                        return str(overview["health"])
        return ""

    def overviews(self) -> list[dict[str, Any]]:
        """The overview of all pipelines; empty as long as there is no answer."""
        answer = self.airflow.ask("/sluice/v1/overview")
        overviews: list[dict[str, Any]] = (
            answer.json() if answer.status_code == httpx.codes.OK else []
        )
        return overviews

    def status(self, pipeline: str, title: str, text: str = "") -> str:
        """The health that `sluice status` prints, if the command also prints the failure and exits with 1."""
        said = self.sluice("status")
        about_it = re.compile(rf"✗ ({pipeline}|\d+ pipelines \((.+, )?{pipeline}(, .+)?\)), ")
        lines = [line for line in said.stdout.splitlines() if about_it.match(line)]
        if said.returncode == 1 and any(title in line and text in line for line in lines):
            health = re.search(rf"^\s*{pipeline}\s+(\w+)", said.stdout, re.MULTILINE)
            return health[1] if health else ""
        return ""

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Sluice on the platform's host."""
        command = [SLUICE, *arguments]
        variables = {**self.platform.variables(), **self.environment}
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    def metric(self, pipeline: str, kind: str) -> str:
        """The kind, if the condition's gauge is 1."""
        assert self.metrics is not None
        page = self.metrics.get("/metrics").text
        return (
            kind if f'sluice_condition{{pipeline="{pipeline}",kind="{kind}"}} 1\n' in page else ""
        )

    def alert(self, name: str, pipeline: str) -> str:
        """The name of an alert that fires for a pipeline, or for all."""
        assert self.prometheus is not None
        alerts = self.prometheus.get("/api/v1/alerts").json()["data"]["alerts"]
        for alert in alerts:
            labels = alert["labels"]
            is_about_it = labels.get("pipeline", pipeline) == pipeline
            if labels["alertname"] == name and alert["state"] == "firing" and is_about_it:
                return name
        return ""
