"""Docker Compose on Docker's engine, or, on a machine without one, on Podman's with images that are made here.

Podman's images come from Debian's packages, PyPI and Maven Central, because such a machine may
reach no image registry.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.local.service import Service, stop

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
IMAGE = "sluice:0.1.0"
_BASE = "docker.io/library/python:3.11-slim-bookworm"
_NEEDED = ("podman", "runc", "mmdebstrap", "docker-compose", "netavark", "aardvark-dns", "iptables")
_HELPERS = "/usr/lib/podman"
"""Debian's folder for the programs with which Podman makes networks."""


@dataclass(frozen=True)
class Engine:
    """The commands of an engine that has the image."""

    client: list[str]
    """`docker` or `podman`, whose commands for containers are the same."""
    compose: list[str]
    variables: Mapping[str, str]

    def call(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command of the client."""
        command = [*self.client, *arguments]
        return subprocess.run(
            command,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run(self, *arguments: str, timeout: float = 120) -> str:
        """The output of a command of the client, which must succeed."""
        ran = self.call(*arguments, timeout=timeout)
        assert ran.returncode == 0, f"{arguments[0]}: {ran.stdout[-4_000:]}{ran.stderr[-4_000:]}"
        return ran.stdout

    def inspect(self, container: str) -> dict[str, Any]:
        (found,) = json.loads(self.run("inspect", container))
        return dict(found)


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """An engine with the image of docker/Dockerfile. Podman keeps its images in `folder`."""
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "info"], capture_output=True).returncode
    ):
        docker = Engine(["docker"], ["docker", "compose"], {})
        docker.run("build", "--tag", IMAGE, "--file", "docker/Dockerfile", str(ROOT), timeout=3_600)
        yield docker
        return
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", _HELPERS))
    if missing := [program for program in _NEEDED if not shutil.which(program, path=path)]:
        pytest.skip(
            f"neither Docker's engine nor {', '.join(missing)} is installed (apt-get install)"
        )
    if os.geteuid():
        pytest.skip("Podman makes networks for containers as root only")
    folder.mkdir(parents=True, exist_ok=True)
    # Without this setting, Podman asks for higher limits than a container's root may have.
    (folder / "containers.conf").write_text("[containers]\ndefault_ulimits = []\n")
    socket = f"unix://{folder}/podman.sock"
    variables = {
        "CONTAINERS_CONF": str(folder / "containers.conf"), "DOCKER_HOST": socket, "COMPOSE_HTTP_TIMEOUT": "600",
        "PATH": path, "TMPDIR": str(folder),
    }  # fmt: skip
    podman = [
        "podman", "--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--tmpdir", str(folder / "tmp"),
        "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--network-backend", "netavark",
        "--events-backend", "file",
    ]  # fmt: skip
    made = Engine(podman, ["docker-compose"], variables)
    _make_images(made, folder)
    command = [*podman, "system", "service", "--time", "0", socket]
    service = Service.start("podman", command, os.environ | variables, folder / "podman.log")
    ended = threading.Event()
    checks = threading.Thread(target=_check_health, args=(made, ended))
    checks.start()
    try:
        yield made
    finally:
        ended.set()
        checks.join()
        stop([service])


def _make_images(podman: Engine, folder: Path) -> None:
    """The image, and those that stand in for the images that compose.yaml and the Dockerfile name."""
    if _BASE not in podman.run("images", "--format", "{{.Repository}}:{{.Tag}}"):
        root = folder / "python.tar"
        packages = "ca-certificates,netbase,tzdata,python3.11,python3.11-venv"
        leave_out = [
            f"--dpkgopt=path-exclude=/usr/share/{files}/*" for files in ("doc", "locale", "man")
        ]
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", *leave_out,
             f"--customize-hook={HERE / 'python/setup.sh'}", "bookworm", str(root)],
            check=True,
        )  # fmt: skip
        path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        podman.run(
            "import",
            "--change",
            f"ENV {path}",
            "--change",
            "ENV LANG=C.UTF-8",
            str(root),
            _BASE,
            timeout=600,
        )
        root.unlink()
    build = ("build", "--layers", "--pull=never", "--network", "host", "--tag")
    podman.run(*build, IMAGE, "--file", str(ROOT / "docker/Dockerfile"), str(ROOT), timeout=3_600)
    podman.run(*build, "docker.io/apache/kafka:4.1.1", str(HERE / "kafka"), timeout=3_600)
    podman.run(*build, "docker.io/library/postgres:17", str(HERE / "postgres"), timeout=3_600)


def _check_health(podman: Engine, ended: threading.Event) -> None:
    """Run the containers' health checks until `ended`: Podman leaves their timers to systemd."""
    while not ended.wait(5):
        for container in podman.run("ps", "--quiet").split():
            podman.call("healthcheck", "run", container)
