"""Checks of docker/compose.yaml that need no Docker engine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

import sluice.settings

DOCKER = Path(__file__).parents[3] / "docker"
COMPOSE = DOCKER / "compose.yaml"
COMPOSITION: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSITION["services"]
SECRETS = {"POSTGRES_PASSWORD", "AIRFLOW_API_SECRET", "AIRFLOW_JWT_SECRET", "AIRFLOW_FERNET_KEY"}

every_service = pytest.mark.parametrize("name", SERVICES)


def client() -> list[str] | None:
    """The command for Docker Compose: docker's plugin or docker-compose."""
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def check(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    result = client()
    if result is None:
        pytest.skip("no client for docker compose is installed")
    path = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = [*result, "-f", str(COMPOSE), "config", "-q"]
    return subprocess.run(
        command, env=path | environ, cwd=DOCKER, capture_output=True, text=True, timeout=240
    )


def test_docker_compose_accepts_the_file() -> None:
    ran = check(dict.fromkeys(SECRETS, "abc"))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_a_missing_secret_is_named(secret: str) -> None:
    ran = check(dict.fromkeys(SECRETS - {secret}, "abc"))
    assert ran.returncode != 0
    assert secret in ran.stderr


def test_the_file_has_all_services() -> None:
    airflow = {
        f"airflow-{part}"
        for part in ("init", "api-server", "scheduler", "dag-processor", "triggerer")
    }
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
def test_health_checks_cost_little_and_have_no_blanks(name: str) -> None:
    words = SERVICES[name].get("healthcheck", {}).get("test", [])
    assert words[1:2] != ["airflow"], "a command of Airflow takes three seconds of processor time"
    assert not [word for word in words if " " in word], "Podman splits words at blanks"


def test_postgres_is_not_healthy_while_its_initial_script_runs() -> None:
    words = SERVICES["postgres"]["healthcheck"]["test"]
    assert words[words.index("--host") + 1] == "127.0.0.1", (
        "the server then listens on its socket only"
    )


@pytest.fixture
def served() -> Iterator[str]:
    """The URL of a server that answers /health with JSON, and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"metadatabase": {"status": "healthy"}, "workers": 1}')

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", str(DOCKER / "probe.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("condition", ["metadatabase.status=healthy", "workers=1"])
def test_a_probe_succeeds_if_the_service_says_that_it_works(served: str, condition: str) -> None:
    ran = probe(f"{served}/health", condition)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    ("path", "condition", "reason"),
    [
        (
            "/health",
            "metadatabase.status=unhealthy",
            "metadatabase.status is healthy, not unhealthy",
        ),
        ("/health", "metadatabase.status.code=1", "TypeError"),
        ("/health", "scheduler.status=healthy", "KeyError('scheduler')"),
        ("/other", "workers=1", "HTTPError 404"),
    ],
)
def test_a_probe_fails_otherwise_and_says_why(
    served: str, path: str, condition: str, reason: str
) -> None:
    ran = probe(f"{served}{path}", condition)
    assert ran.returncode == 1
    assert reason in ran.stderr


def test_a_probe_fails_without_a_server() -> None:
    ran = probe("http://127.0.0.1:9/health", "workers=1")
    assert ran.returncode == 1
    assert "Connection refused" in ran.stderr


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
    assert (
        DOCKER / SERVICES["airflow-init"]["build"]["context"] / "docker" / "Dockerfile"
    ).is_file()


DOCKERFILE = (DOCKER / "Dockerfile").read_text()
ROOT = DOCKER.parent


def test_the_image_copies_what_exists_and_is_not_ignored() -> None:
    copied = {
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    assert {source if source in kept else source.split("/")[0] for source in copied} == kept
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_has_airflow_and_spark() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r'install .*"\.\[(\w+)\]"', DOCKERFILE)
    assert extras == ["airflow"]
    needed: list[str] = []
    for extra in ("airflow", "airflow-minimal", "spark"):
        needed += project["optional-dependencies"][extra]
    assert "sluice-streams[airflow-minimal,spark]" in needed
    assert {"apache-airflow", "pyspark"} <= {re.split(r"[\[<>=]", need)[0] for need in needed}
    assert f"pip uninstall --yes {project['name']}" in DOCKERFILE


def test_no_source_of_the_package_stays_in_the_image_beside_the_installed_one() -> None:
    assert (
        "pip install --no-cache-dir --no-deps . && rm -r build sluice sluice_streams.egg-info"
        in DOCKERFILE
    )


def test_the_code_in_the_image_does_not_belong_to_its_user() -> None:
    (folders,) = re.findall(r"install -d -o sluice (.+)$", DOCKERFILE, re.MULTILINE)
    assert set(folders.split()) == {"/var/lib/sluice", "/var/lib/airflow"}


def test_the_image_does_not_run_as_root() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)[-1] == "sluice"


@every_service
def test_commands_and_probes_exist_in_the_image(name: str) -> None:
    service = SERVICES[name]
    if "build" not in service:
        return
    for words in (
        service["command"],
        service.get("healthcheck", {}).get("test", ["CMD", "python3"])[1:],
    ):
        assert words[0] in ("airflow", "python3") or words[0].endswith("pyspark/bin/spark-class")
        assert words[0] != "python3" or words[1:2] in ([], ["probe.py"])
        if words[0] == "airflow":
            command = {
                "db": "airflow.cli.commands.db_command",
                "jobs": "airflow.cli.commands.jobs_command",
            }
            module = command.get(
                words[1], f"airflow.cli.commands.{words[1].replace('-', '_')}_command"
            )
            assert importlib.util.find_spec(module), words
