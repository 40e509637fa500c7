"""The stage for incidents: Airflow, a broker, PostgreSQL for the ledger, two state servers, and Prometheus."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from confluent_kafka.admin import AdminClient

from sluice.kafka.topics import Topic, create_topics, produce
from sluice.local.airflow_client import Airflow
from sluice.local.platform import LocalPlatform, remember
from sluice.local.service import Service, stop
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.topology import load_pipelines
from tests.docs.pages import read
from tests.faults.clock import SteppedClock
from tests.incidents.places import SLUICE, Places
from tests.support.airflow_database import provide_database
from tests.support.kept_folders import kept_on_failure
from tests.support.ports import free_port
from tests.support.postgres import postgres_server
from tests.support.prometheus import prometheus, scrape_seconds

PIPELINES = Path(__file__).with_name("pipelines")
NEVER_CREATED = "offers"
PAUSED = "alarms"
READ_BEFORE = ("sales", "returns", "scans", "visits")
"""The pipelines that must have read records before an incident happens to them."""
POOL, SLOTS = "streams", 3
TOKEN = "the-token-of-the-stage"
IMPATIENT, PATIENCE_S = "shipments", 90.0
"""A pipeline whose trigger starts a new run this long after Airflow's attempts are used up, not after ten minutes."""
SHARDS_MIB = 1_200
"""The size of the disk of the shards. It is nearly full if less than 1 GiB is free."""
LONGEST_S = 600.0
LAUNCHER = "org.apache.spark.launcher.Main"
"""A short program with the driver's arguments, which only finds out how spark-submit starts the driver's JVM."""

# Airflow only reads files with the words airflow and dag in them.
DAGS = {
    "pipelines.py": """
from sluice.orchestration import dags
from sluice.settings import settings
trigger = dags.KafkaEndOffsetTrigger
def trigger_of(name, topics, **arguments):
    patience = {"patience_seconds": PATIENCE} if name == "IMPATIENT" else {}
    return trigger(name, topics, **arguments, **patience)
dags.KafkaEndOffsetTrigger = trigger_of
globals().update(dags.pipeline_dags(settings().pipelines))
""".replace("PATIENCE", f"{PATIENCE_S}").replace("IMPATIENT", IMPATIENT),
    # State of less than 1 GiB may grow, but a stage cannot wait for a week until it has a large
    # state.
    "maintenance.py": """
from sluice.operations import state_growth
from sluice.orchestration.maintenance_dag import retention_dag
state_growth._SMALL = 1
dag = retention_dag()
""",
    "other_team.py": f"""
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
with DAG("other_team", schedule=None) as dag:
    BashOperator(task_id="long_task", bash_command="sleep 3600", pool="{POOL}", pool_slots={SLOTS})
""",
}


class CannotBeStaged(Exception):
    """This machine lacks what an incident needs."""


@dataclass
class Stage:
    """A running platform, and what incidents do to it."""

    platform: LocalPlatform
    places: Places
    server: Service
    """The state server that Prometheus scrapes."""
    shards: Path
    stack: ExitStack
    warehouse_port: int
    """The port of the warehouse's database, which is away."""
    has_own_disk: bool
    """Whether the shards are on a small disk of their own."""
    _log_before: int = 0
    """The length of the triggerer's log when the incident began."""

    @property
    def kafka(self) -> dict[str, str]:
        return self.platform.kafka_config

    @property
    def settings(self) -> Settings:
        return Settings.read(self.platform.variables())

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        with Ledger.open(self.settings.ledger) as ledger:
            yield ledger

    @contextmanager
    def admin(self) -> Iterator[Airflow]:
        with self.platform.as_user() as airflow:
            yield airflow

    def send(self, pipeline: str, count: int = 5, bad: int = 0) -> None:
        """Send records to a pipeline's topic, `bad` of them without a field that the contract requires."""
        values = [b'{"shop": "a", "amount": 1}'] * (count - bad) + [b'{"shop": "a"}'] * bad
        produce(self.kafka, pipeline, ((None, value, 0) for value in values))

    def delete_topic(self, topic: str) -> None:
        admin = AdminClient({**self.kafka, "log_level": 0})
        admin.delete_topics([topic])[topic].result(20)

    def create_topics(self, *names: str) -> None:
        create_topics(self.kafka, [Topic(name) for name in names])

    def runs(self, pipeline: str) -> list[dict[str, Any]]:
        with self.admin() as airflow:
            return airflow.runs(pipeline)

    def newest_task(self, dag: str) -> dict[str, Any]:
        """The newest run's task instance; empty without a run."""
        with self.admin() as airflow:
            runs = airflow.runs(dag)
            if not runs:
                return {}
            tasks = airflow.tasks(dag, runs[-1]["dag_run_id"])
        return tasks[0] if tasks else {}

    def task_log(self, dag: str) -> str:
        """The log of all attempts of the newest run."""
        task = self.newest_task(dag)
        if not task:
            return ""
        with self.admin() as airflow:
            attempts = range(1, task["try_number"] + 1)
            return "".join(
                airflow.log(dag, task["dag_run_id"], task["task_id"], attempt)
                for attempt in attempts
            )

    def begin_incident(self) -> None:
        """Forget what the triggers have logged about earlier incidents."""
        self._log_before = len(self._trigger_log())

    def trigger_log(self) -> str:
        """What the triggers have logged since the incident began."""
        return self._trigger_log()[self._log_before :]

    def change(self, path: str, **values: Any) -> None:
        """PATCH an object of Airflow as the admin."""
        self._ask("PATCH", path, values)

    def create(self, path: str, **values: Any) -> None:
        """POST an object to Airflow as the admin."""
        self._ask("POST", path, values)

    def drivers(self, pipeline: str) -> list[psutil.Process]:
        """The processes of the drivers of a pipeline, whatever has started them."""
        return [process for process in psutil.process_iter() if self._is_driver(process, pipeline)]

    def await_no_driver(self, pipeline: str) -> None:
        """Wait until the last driver of a pipeline has ended. It goes on for a while after it has published."""
        self.wait(lambda: not self.drivers(pipeline), f"a driver of {pipeline} goes on")

    def holds_lease(self, pipeline: str) -> bool:
        """Whether a driver holds the pipeline's lease."""
        with self.ledger() as ledger:
            return any(
                lease.held and lease.pipeline == pipeline
                for lease in ledger.leases.of_all_pipelines()
            )

    def java(self, pipeline: str) -> psutil.Process:
        """The JVM of a pipeline's driver, once it runs."""
        found: list[psutil.Process] = []

        def runs() -> bool:
            found[:] = [
                each for each in self.drivers(pipeline) if each.cmdline()[0].endswith("java")
            ]
            return bool(found)

        self.wait(runs, f"no driver of {pipeline}", 0.1)
        return found[0]

    def serve(self, name: str, *arguments: str) -> tuple[Service, int]:
        """Start a state server."""
        port = free_port()
        service = self.start(name, "serve", "--port", str(port), *arguments)
        self.wait(lambda: b"listens" in service.log.read_bytes(), f"{name} does not listen")
        return service, port

    def start(self, name: str, *arguments: str, **environment: str) -> Service:
        """Start a command of Sluice in the background."""
        log = self.platform.logs / f"{name}.log"
        service = Service.start(
            name, [SLUICE, *arguments], {**self.platform.variables(), **environment}, log
        )
        remember(self.platform.home, service.process.pid)
        self.stack.callback(stop, [service])
        return service

    def start_warehouse(self) -> None:
        """Start the warehouse's database, which stays until the stage ends."""
        self.stack.enter_context(
            postgres_server(self.platform.home / "warehouse", self.warehouse_port)
        )

    def stepped_clock(self) -> SteppedClock:
        return SteppedClock(self.platform.home / "clock")

    def wait(
        self,
        condition: Callable[[], bool],
        what: str,
        pause_s: float = 0.5,
        seconds: float = LONGEST_S,
    ) -> None:
        """Wait for a condition. Raises EngineError with `what` if it does not come true."""
        for _ in self.platform.ticks(seconds, what, pause_s):
            if condition():
                return

    def has_read(self, pipeline: str) -> bool:
        """Whether the page shows that the pipeline has read everything, and that nothing is wrong with it."""
        shown = {overview["pipeline"]: overview for overview in self.places.overviews()}.get(
            pipeline
        )
        return shown is not None and (shown["health"], shown["unread"]) == ("idle", 0)

    def read_first_records(self, *pipelines: str) -> None:
        """Let pipelines run for the first time."""
        for pipeline in pipelines:
            self.send(pipeline)
        for pipeline in pipelines:
            self.wait(partial(self.has_read, pipeline), f"{pipeline} has not read its records")

    def _trigger_log(self) -> str:
        return (self.platform.logs / "triggerer.log").read_text(errors="replace")

    def _ask(self, method: str, path: str, values: dict[str, Any]) -> None:
        with self.admin() as airflow:
            headers = {"Authorization": f"Bearer {airflow.token}"}
        url = f"{self.platform.url}/api/v2/{path}"
        httpx.request(
            method, url, json=values, headers=headers, timeout=60, trust_env=False
        ).raise_for_status()

    def _is_driver(self, process: psutil.Process, pipeline: str) -> bool:
        try:
            command = process.cmdline()
            if command[-1:] != [pipeline] or "sluice/driver.py" not in " ".join(command):
                return False
            if LAUNCHER in command:
                return False
            return process.environ().get("SLUICE_HOME") == str(self.platform.home)
        except psutil.Error:
            return False


@contextmanager
def stage(home: Path | None = None) -> Iterator[Stage]:
    """A stage on which every pipeline is healthy, or has not read anything yet."""
    with ExitStack() as stack:
        if home is None:
            home = stack.enter_context(kept_on_failure("sluice-incidents-"))
        shards, has_own_disk = _disk_of_shards(home / "disk", stack)
        ledger = stack.enter_context(postgres_server(home / "postgres"))
        (home / "dags").mkdir()
        for name, text in DAGS.items():
            (home / "dags" / name).write_text(f"# Airflow reads this file for its dag.{text}")
        pipelines = home / "pipelines"
        pipelines.mkdir()
        for file in PIPELINES.glob("*.py"):
            (pipelines / file.name).write_text(file.read_text())
        warehouse_port = free_port()
        environment = {
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "SLUICE_LEDGER": ledger,
            "SLUICE_SHARDS": f"sqlite:///{shards}",
            "SLUICE_POOL": POOL,
            "SLUICE_SERVER_TOKEN": TOKEN,
            # No database listens at these ports.
            "SLUICE_CONNECTION_BILLING": f"postgresql://sluice@127.0.0.1:{free_port()}/postgres",
            "SLUICE_CONNECTION_WAREHOUSE": f"postgresql://sluice@127.0.0.1:{warehouse_port}/postgres",
        }
        provide_database(home / "airflow" / "airflow.db")
        platform = LocalPlatform(
            home, free_port(), free_port(), pipelines=pipelines, environment=environment
        )
        with platform:
            platform.start(lambda: _create_topics(platform))
            nobody = Service("none", subprocess.Popen(["true"]), home / "none")
            made = Stage(
                platform, Places(platform), nobody, shards, stack, warehouse_port, has_own_disk
            )
            _get_ready(made, home)
            yield made
            stack.close()


def _get_ready(made: Stage, home: Path) -> None:
    places = made.places
    made.create("pools", name=POOL, slots=SLOTS, include_deferred=False)
    with made.admin() as airflow:
        made.wait(
            lambda: airflow.ask(f"/api/v2/dags/{PAUSED}").status_code == 200,
            "Airflow has not read the DAGs",
        )
    made.change(f"dags/{PAUSED}", is_paused=True)
    made.server, port = made.serve("state-server")
    address = f"127.0.0.1:{port}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    places.metrics = httpx.Client(
        base_url=f"http://{address}", headers=headers, timeout=30, trust_env=False
    )
    seconds = scrape_seconds(read("docs/how-to/metrics.md"))
    places.prometheus = made.stack.enter_context(prometheus(home, address, TOKEN, seconds))


def _create_topics(platform: LocalPlatform) -> None:
    names: list[str] = []
    for pipeline in load_pipelines(platform.pipelines).pipelines:
        job = plan(pipeline).job
        names += [*job.topics, *job.outputs, pipeline.dead_letters]
    create_topics(
        platform.kafka_config,
        [Topic(name) for name in dict.fromkeys(names) if name != NEVER_CREATED],
    )


def _disk_of_shards(folder: Path, stack: ExitStack) -> tuple[Path, bool]:
    """A folder for shards, and whether it is on a disk of its own, which needs root."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SHARDS_MIB}m", "none", str(folder)]
    is_mounted = (
        os.geteuid() == 0
        and subprocess.run(mount, check=False, capture_output=True).returncode == 0
    )
    if is_mounted:
        stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)
    shards = folder / "shards"
    shards.mkdir()
    return shards, is_mounted


def suspend(processes: Iterable[psutil.Process | Service]) -> None:
    """Stop processes without ending them, as a host that hangs does."""
    for process in processes:
        os.kill(
            process.process.pid if isinstance(process, Service) else process.pid, signal.SIGSTOP
        )


def resume(processes: Iterable[psutil.Process | Service]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(
                process.process.pid if isinstance(process, Service) else process.pid, signal.SIGCONT
            )
