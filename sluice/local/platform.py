"""Start Kafka and Airflow locally for the demo and tests, and remove all their files afterwards."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sluice.errors import EngineError, PreflightError
from sluice.local.airflow_client import Airflow, LogIn
from sluice.local.broker import EmbeddedKafka, running
from sluice.local.broker import stop as stop_kafka
from sluice.local.service import Service, end_sessions, members, stop
from sluice.provision.machine_checks import LOOPBACK, check_port, find_java, free_port
from sluice.settings import settings

ROOT = Path(__file__).resolve().parents[2]
"""Sluice's Git clone, with dags/, plugins/ and spark_jobs/."""

COMPONENTS = {
    "api-server": ["api-server"],
    # No log servers are started. They would listen on all addresses, and are not needed, because
    # the API server reads the log files itself.
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
START_SECONDS = 900.0
"""How long to wait for Airflow, which takes 15 seconds to start on a quiet machine, and minutes on
a busy one."""

Say = Callable[[str], None]


def _silent(_: str) -> None: ...


@dataclass
class LocalPlatform:
    """A broker and Airflow with all its components, on the loopback address, with files in `home`.

    As a context manager, it ends all of its processes, however the block ends.
    """

    home: Path
    port: int = field(default_factory=free_port)
    kafka_port: int | None = None
    spark_master: str = "local[2]"
    pipelines: Path = ROOT / "spark_jobs"
    environment: dict[str, str] = field(default_factory=dict)
    """Additional environment variables for Airflow's processes."""

    def __post_init__(self) -> None:
        if not (ROOT / "dags").is_dir():
            raise PreflightError(
                f"There is no folder dags in {ROOT}.",
                next_step="Run from a clone of the repository.",
            )
        find_java()
        check_port(self.port, purpose="Airflow", next_step="Choose another port with --port.")
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.admin = LogIn("admin", secrets.token_urlsafe(12))
        self.viewer = LogIn("viewer", secrets.token_urlsafe(12))
        self.kafka = EmbeddedKafka(self.home / "kafka", self.kafka_port)
        self.logs = self.home / "logs"
        self.secrets = _secrets()
        self._services: dict[str, Service] = {}

    @property
    def kafka_config(self) -> dict[str, str]:
        """Settings of a Kafka client for this broker."""
        return {"bootstrap.servers": self.kafka.bootstrap}

    @property
    def sessions(self) -> set[int]:
        """The ids of the system's sessions in which Airflow's components and the broker run."""
        broker = running(self.kafka.folder)
        return {service.process.pid for service in self._services.values()} | (
            {broker.pid} if broker else set()
        )

    def __enter__(self) -> LocalPlatform:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, fill: Callable[[], None] = lambda: None) -> None:
        """Start the broker; call `fill` while Airflow migrates its database; then start Airflow."""
        with ThreadPoolExecutor(2) as together:
            tasks = [together.submit(self.start_kafka, fill), together.submit(self.lay_out_airflow)]
            for task in tasks:
                task.result()
        self.start_airflow()
        self.wait_for_airflow()

    def start_kafka(self, fill: Callable[[], None] = lambda: None) -> None:
        """Start the broker, then call `fill`."""
        self.kafka.start()
        fill()

    def lay_out_airflow(self) -> None:
        """Write the users' passwords and create Airflow's database."""
        folder = self.home / "airflow"
        folder.mkdir(parents=True, exist_ok=True)
        write_secret(
            self.home / "passwords.json",
            json.dumps({log_in.user: log_in.password for log_in in (self.admin, self.viewer)}),
        )
        self.migrate_database()

    def migrate_database(self) -> None:
        """Create Airflow's database."""
        migrate = self._spawn("database", ["db", "migrate"])
        migrate.finish()

    def start_airflow(self) -> None:
        """Start all of Airflow's components."""
        for name, arguments in COMPONENTS.items():
            self.start_component(name, arguments)

    def start_component(self, name: str, arguments: list[str] | None = None) -> None:
        """Start one of Airflow's components."""
        self._spawn(name, arguments or COMPONENTS[name])

    def stop_component(self, name: str) -> None:
        """Stop one of Airflow's components and every process that it started."""
        stop([self._services.pop(name)])

    def processes(self, component: str) -> list[psutil.Process]:
        """Return the process of an Airflow component and all of its child processes."""
        return members({self._services[component].process.pid})

    def wait_for_airflow(self, say: Say = _silent) -> None:
        """Wait until all components are healthy.

        Raises EngineError if a component ends, or if it takes too long.
        """
        airflow = Airflow(self.url)
        for _ in self.ticks(START_SECONDS, "Airflow is not up"):
            unhealthy = airflow.unhealthy()
            if not unhealthy:
                break
            say(f"waits for {', '.join(unhealthy)}")
        airflow.close()

    def ticks(self, seconds: float, what: str, pause_s: float = 0.5) -> Iterator[float]:
        """Yield the elapsed seconds every `pause_s`.

        Raises EngineError after `seconds`, or if a component ends.
        """
        began = time.monotonic()
        while (gone := time.monotonic() - began) < seconds:
            for service in self._services.values():
                if service.name in COMPONENTS:
                    service.check()
            yield gone
            time.sleep(pause_s)
        raise EngineError(
            f"{what} after {seconds:.0f} s.", next_step=f"The logs are in {self.logs}."
        )

    @contextmanager
    def as_user(self, log_in: LogIn | None = None) -> Iterator[Airflow]:
        """Yield a client of Airflow as a user, by default the admin."""
        airflow = Airflow(self.url, log_in or self.admin)
        try:
            yield airflow
        finally:
            airflow.close()

    def stop(self) -> None:
        """Stop all processes. Airflow stops first, because it uses the broker."""
        stop(list(self._services.values()))
        self._services.clear()
        self.kafka.stop()

    def _spawn(self, name: str, arguments: list[str]) -> Service:
        airflow = [sys.executable, "-m", "airflow", *arguments]
        service = Service.start(name, airflow, self.variables(), self.logs / f"{name}.log")
        self._services[name] = service
        remember(self.home, service.process.pid)
        return service

    def variables(self) -> dict[str, str]:
        """Return the environment of Airflow's processes."""
        # Settings in the user's shell must not reach this Airflow.
        outer = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "SLUICE_"))}
        return {**outer, **self.secrets, **self._sluice(), **self._airflow(), **self.environment}

    def _sluice(self) -> dict[str, str]:
        return {
            "SLUICE_HOME": str(self.home),
            "SLUICE_PIPELINES": str(self.pipelines),
            "SLUICE_JARS": str(settings().jars),
            "SLUICE_KAFKA": json.dumps(self.kafka_config),
        }

    def _airflow(self) -> dict[str, str]:
        # The time limits are longer than Airflow's defaults, which a busy machine with two cores
        # exceeds.
        return {
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "NO_PROXY": LOOPBACK,
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
                {"conn_type": "kafka", "extra": self.kafka_config}
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(
                {"conn_type": "spark", "host": self.spark_master}
            ),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__HOST": LOOPBACK,
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.home / "passwords.json"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        }


def remember(home: Path, session: int) -> None:
    """Record a session's id in `home`. If this process is killed, `clear` ends the session."""
    with (home / "sessions").open("a") as notes:
        notes.write(f"{session} {psutil.Process(session).create_time()}\n")


def clear(home: Path) -> None:
    """End the processes that a killed platform has left, and remove `home`."""
    notes = home / "sessions"
    if notes.is_file():
        own_sessions: set[int] = set()
        for line in notes.read_text().splitlines():
            session, created = line.split()
            if _is_ours(int(session), float(created)):
                own_sessions.add(int(session))
        end_sessions(own_sessions, 15.0)
    if (home / "kafka").is_dir():
        stop_kafka(home / "kafka")
    if home.exists():
        shutil.rmtree(home)


def _is_ours(session: int, created: float) -> bool:
    """Return whether the processes with this session id belong to the recorded session.

    A session's id is the id of its first process, and is not used again while any process of the
    session is alive. So if the first process has ended, the remaining processes belong to the
    recorded session.
    """
    try:
        return psutil.Process(session).create_time() == created
    except psutil.NoSuchProcess:
        return True


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    # The file gets its mode before its content, so that no other user can read the content
    # meanwhile.
    file.touch(mode=0o600)
    file.write_text(text)


def _secrets() -> dict[str, str]:
    """Return secrets that Airflow's components share.

    Otherwise, each component would write its own secrets to airflow.cfg.
    """
    return {
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(48),
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
    }
