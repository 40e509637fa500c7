"""The services of docker/compose.yaml, started from the image."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.faults.world import wait_until
from tests.image.engine import ROOT, Engine
from tests.support.ports import free_port

_COMPOSE = ROOT / "docker/compose.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(_COMPOSE.read_text())["services"]
LASTING = [name for name in SERVICES if name != "airflow-init"]
_HEALTHY_S = 300.0
_RUN_S = 400.0
_PROJECT = "sluice-image-test"


@dataclass(frozen=True)
class Composition:
    """The services, the ports that they publish on loopback, and their passwords."""

    engine: Engine
    variables: Path
    values: dict[str, str]

    def compose(self, *arguments: str, timeout: float = 600) -> str:
        """The output of a command of Docker Compose, which must succeed."""
        command = [
            *self.engine.compose, "--file", str(_COMPOSE), "--project-name", _PROJECT,
            "--env-file", str(self.variables), *arguments,
        ]  # fmt: skip
        environment = os.environ | self.engine.variables
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout
        )
        assert ran.returncode == 0, f"{arguments}: {ran.stdout[-4_000:]}{ran.stderr[-4_000:]}"
        return ran.stdout

    def container(self, service: str) -> str:
        """The id of a service's container, which may have ended."""
        (found,) = self.compose("ps", "--all", "--quiet", service).split()
        return found

    def status(self, service: str) -> dict[str, Any]:
        return dict(self.engine.inspect(self.container(service))["State"])

    def health(self, service: str) -> str:
        """What the health checks since the start of the container say: starting, healthy, unhealthy."""
        status = self.status(service)
        return str(status["Health"]["Status"]) if status["Running"] else "ended"

    def works(self, service: str) -> bool:
        """Whether the service's health check succeeds now."""
        _kind, *command = SERVICES[service]["healthcheck"]["test"]
        return self.engine.call("exec", self.container(service), *command).returncode == 0

    def wait_until_healthy(self) -> None:
        for service in LASTING:
            assert wait_until(lambda name=service: self.health(name) == "healthy", _HEALTHY_S, 1), (  # type: ignore[misc]
                service, self.status(service), self.logs(service)
            )  # fmt: skip

    def logs(self, service: str) -> str:
        """The end of a container's output."""
        ran = self.engine.call("logs", "--tail", "60", self.container(service))
        return ran.stdout + ran.stderr

    def airflow(self) -> httpx.Client:
        """A client of Airflow that is logged in with the password that Airflow generated."""
        file = "/var/lib/airflow/simple_auth_manager_passwords.json.generated"
        passwords = json.loads(
            self.engine.run("exec", self.container("airflow-api-server"), "cat", file)
        )
        url = f"http://127.0.0.1:{self.values['AIRFLOW_PORT']}"
        log_in = {"username": "admin", "password": passwords["admin"]}
        token = (
            httpx.post(f"{url}/auth/token", json=log_in, timeout=60)
            .raise_for_status()
            .json()["access_token"]
        )
        return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def process_orders(self, count: int, airflow: httpx.Client) -> None:
        """Have Airflow's example send orders, and wait until a run of the pipeline that they start has ended."""
        before = len(_runs(airflow, "orders"))
        for dag in ("orders", "produce_sample_orders"):
            airflow.patch(f"/api/v2/dags/{dag}", json={"is_paused": False}).raise_for_status()
        request = {"logical_date": None, "conf": {"count": count}}
        airflow.post("/api/v2/dags/produce_sample_orders/dagRuns", json=request).raise_for_status()

        def ended() -> bool:
            states = [
                run["state"]
                for dag in ("produce_sample_orders", "orders")
                for run in _runs(airflow, dag)
            ]
            return len(_runs(airflow, "orders")) > before and set(states) <= {"success", "failed"}

        assert wait_until(ended, _RUN_S, 1), self.logs("airflow-scheduler")
        states = [
            run["state"]
            for dag in ("produce_sample_orders", "orders")
            for run in _runs(airflow, dag)
        ]
        assert set(states) == {"success"}, self.logs("airflow-scheduler")


@contextmanager
def composition(engine: Engine, folder: Path) -> Iterator[Composition]:
    """The services, started by `docker compose up`; they and their volumes are removed after the block."""
    values = {
        "POSTGRES_PASSWORD": secrets.token_hex(32),
        "AIRFLOW_API_SECRET": secrets.token_hex(32),
        "AIRFLOW_JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW_PORT": str(free_port()),
        "KAFKA_PORT": str(free_port()),
        "SPARK_MASTER_UI_PORT": str(free_port()),
        "SPARK_WORKER_UI_PORT": str(free_port()),
    }
    variables = folder / "variables"
    variables.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    composed = Composition(engine, variables, values)
    try:
        composed.compose("up", "--detach", "--no-build")
        yield composed
    finally:
        composed.compose("down", "--volumes", "--timeout", "5")


def _runs(airflow: httpx.Client, dag: str) -> list[dict[str, Any]]:
    return list(airflow.get(f"/api/v2/dags/{dag}/dagRuns").raise_for_status().json()["dag_runs"])
