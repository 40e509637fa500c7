"""Checks of docker/compose.yaml that need no Docker engine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import sluice.settings

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = DOCKER / "compose.yaml"
COMPOSITION: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSITION["services"]
SECRETS = {"POSTGRES_PASSWORD", "AIRFLOW_API_SECRET", "AIRFLOW_JWT_SECRET", "AIRFLOW_FERNET_KEY"}

every_service = pytest.mark.parametrize("name", SERVICES)


def client() -> list[str] | None:
    """The command for Docker Compose: docker's plugin or docker-compose."""
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def check(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    result = client()
    if result is None:
        pytest.skip("no client for docker compose is installed")
    path = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = [*result, "-f", str(COMPOSE), "config", "-q"]
    return subprocess.run(command, env=path | environ, cwd=DOCKER, capture_output=True, text=True, timeout=240)


def test_docker_compose_accepts_the_file() -> None:
    ran = check(dict.fromkeys(SECRETS, "abc"))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_a_missing_secret_is_named(secret: str) -> None:
    ran = check(dict.fromkeys(SECRETS - {secret}, "abc"))
    assert ran.returncode != 0
    assert secret in ran.stderr


def test_the_file_has_all_services() -> None:
    airflow = {f"airflow-{part}" for part in ("init", "api-server", "scheduler", "dag-processor", "triggerer")}
    assert set(SERVICES) == {"kafka", "postgres", "spark-master", "spark-worker", *airflow}


@every_service
def test_every_service_has_an_image_with_a_version(name: str) -> None:
    assert re.fullmatch(r"[a-z/]+:[0-9.]+", SERVICES[name]["image"])


@every_service
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@every_service
def test_every_long_running_service_has_a_health_check(name: str) -> None:
    assert name == "airflow-init" or SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@every_service
def test_the_file_contains_no_secret(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if "SECRET" in key or key.endswith(("_KEY", "_PASSWORD")):
            assert re.fullmatch(r"\$\{[A-Z_]+:\?.*\}", value), key
        assert not re.search(r"://[^/@$]*:[^$@]+@", value), f"{key} holds a password"


def test_the_example_lists_every_variable_without_secrets() -> None:
    lines = (DOCKER / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert set(example) == set(re.findall(r"\$\{([A-Z_]+)", COMPOSE.read_text()))
    assert {name for name, value in example.items() if not value} == SECRETS


def test_every_setting_is_known_to_sluice() -> None:
    environment = SERVICES["airflow-scheduler"]["environment"]
    settings = set(re.findall(r"^\| (SLUICE_\w+)", sluice.settings.__doc__ or "", re.MULTILINE))
    assert {name for name in environment if name.startswith("SLUICE_")} <= settings
    read = sluice.settings.Settings.read(environment)
    assert read.kafka == {"bootstrap.servers": "kafka:19092"}


def test_all_services_of_sluice_use_one_image() -> None:
    own = {name for name, service in SERVICES.items() if "build" in service}
    assert own == {name for name in SERVICES if name.startswith(("airflow", "spark"))}
    assert (DOCKER / SERVICES["airflow-init"]["build"]["context"] / "docker" / "Dockerfile").is_file()


DOCKERFILE = (DOCKER / "Dockerfile").read_text()
ROOT = DOCKER.parent


def test_the_image_copies_what_exists_and_is_not_ignored() -> None:
    copied = {source for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE) for source in line.split()[:-1]}
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert {source.split("/")[0] for source in copied} == kept
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_has_airflow_and_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r'install .*"\.\[(\w+)\]"', DOCKERFILE)
    needed = [need for extra in [*extras, "spark"] for need in project["optional-dependencies"][extra]]
    assert "sluice-streams[spark]" in needed
    assert {"apache-airflow", "pyspark"} <= {re.split(r"[\[<>=]", need)[0] for need in needed}
    assert f"pip uninstall --yes {project['name']}" in DOCKERFILE


def test_the_image_does_not_run_as_root() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1] == "sluice"


@every_service
def test_commands_and_probes_exist_in_the_image(name: str) -> None:
    service = SERVICES[name]
    if "build" not in service:
        return
    for words in (service["command"], service.get("healthcheck", {}).get("test", ["CMD", "python3"])[1:]):
        assert words[0] in ("airflow", "python3") or words[0].endswith("pyspark/bin/spark-class")
        if words[0] == "airflow":
            command = {"db": "airflow.cli.commands.db_command", "jobs": "airflow.cli.commands.jobs_command"}
            module = command.get(words[1], f"airflow.cli.commands.{words[1].replace('-', '_')}_command")
            assert importlib.util.find_spec(module), words
