"""A standalone Spark cluster on loopback: a master and workers, started by the commands of docs/how-to/cluster.md."""

from __future__ import annotations

import os
import shlex
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from sluice.local.service import Service, members, stop
from tests.faults.world import wait_until
from tests.support.ports import free_port

SPARK_CLASS = str(Path(sys.executable).parent / "spark-class")
PAGE = Path(__file__).parents[2] / "docs/how-to/cluster.md"
_START_S = 120.0
_KEPT = ("HOME", "JAVA_HOME", "LANG", "PATH", "TMPDIR")
_ENVIRONMENT = {
    "SPARK_HOME": str(Path(pyspark.__file__).parent),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_MASTER_WEBUI_PORT": "0",
    "SPARK_WORKER_WEBUI_PORT": "0",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def documented(name: str) -> list[str]:
    """The arguments of the `spark-class` command for a class in docs/how-to/cluster.md. Later options override them."""
    (command,) = (
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("spark-class") and name in line
    )
    return shlex.split(command)[1:]


@dataclass
class SparkCluster:
    """A master and its workers. Each worker has its own folder, and its own session of processes."""

    folder: Path
    cores: int = 1
    """Cores of each worker."""
    port: int = field(default_factory=free_port)
    services: dict[str, Service] = field(default_factory=dict)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self, workers: int) -> None:
        """Start the master, and workers named `worker-0`, `worker-1`."""
        self._start(
            "master",
            *documented("deploy.master.Master"),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        )
        self._wait("master", "New state: ALIVE")
        for number in range(workers):
            self.start_worker(f"worker-{number}")
        for number in range(workers):
            self._wait(f"worker-{number}", "Successfully registered")

    def start_worker(self, name: str) -> None:
        *command, _master = documented("deploy.worker.Worker")
        size = (
            "--host",
            "127.0.0.1",
            "--cores",
            str(self.cores),
            "--memory",
            "1g",
            "--work-dir",
            str(self.folder / name),
        )
        self._start(name, *command, *size, self.master)

    def _start(self, name: str, *command: str) -> None:
        # Executors inherit this environment: nothing in it tells them where this repository is.
        environment = {n: v for n, v in os.environ.items() if n in _KEPT} | _ENVIRONMENT
        self.services[name] = Service.start(
            name, [SPARK_CLASS, *command], environment, self._log(name)
        )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _wait(self, name: str, line: str) -> None:
        assert wait_until(lambda: line in self._log(name).read_text(), _START_S), self.services[
            name
        ].tail()

    def received(self, name: str) -> set[str]:
        """The names of the files that drivers have sent to a worker's executors."""
        return {file.name for file in (self.folder / name).glob("app-*/*/*") if file.is_file()}

    def kill(self, name: str) -> None:
        """kill -9 of a worker and its executors, as if its host had lost power."""
        for process in members({self.services[name].process.pid}):
            process.kill()
        self.services.pop(name).process.wait()


@contextmanager
def spark_cluster(folder: Path, workers: int = 2, cores: int = 1) -> Iterator[SparkCluster]:
    """A cluster for the block, of so many workers with so many cores each."""
    cluster = SparkCluster(folder, cores)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        stop(cluster.services.values())


def python_of_executors(folder: Path) -> Path:
    """Make a Python that has the packages of this one, but not Sluice, like the executors' on another host."""
    venv.create(folder, symlinks=True)
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    # Python does not read the .pth files of this folder, so it does not find an editable
    # installation of Sluice.
    (folder / packages / "lock.pth").write_text(str(Path(sys.prefix) / packages))
    return folder / "bin" / "python"
