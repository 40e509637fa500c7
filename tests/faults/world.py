"""The environment of a fault scenario: a broker, a home folder, and drivers as real processes that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient

from sluice.examples.orders.sample_topics import produce_orders
from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings, settings
from sluice.spark_submit import submission
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.support.processes import has_ended, with_descendants
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 900.0


@dataclass
class Driver:
    """A driver: spark-submit's JVM, and the Python program that it runs."""

    process: subprocess.Popen[bytes]
    log: Path
    submitted: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closed after the driver has ended: the first driver then stores the class archive for the next ones."""

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float = LONGEST_S) -> int:
        """Wait until the driver has ended, and return its exit status. After `timeout` seconds, kill it and raise."""
        try:
            status = self.process.wait(timeout)
            self.submitted.close()
            return status
        except subprocess.TimeoutExpired:
            self.kill("all")
            raise

    def python(self) -> psutil.Process | None:
        """The driver's Python program."""
        programs = (
            process
            for process in self.members()
            if "sluice/driver.py" in " ".join(_command(process))
        )
        return next((process for process in programs if not _is_java(process)), None)

    def java(self) -> psutil.Process | None:
        """The JVM."""
        return next((process for process in self.members() if _is_java(process)), None)

    def kill(self, what: str) -> None:
        """kill -9 of `java`, `python` or `all`. Returns after both the JVM and the program have ended."""
        chosen = {"java": self.java, "python": self.python}.get(what, lambda: None)()
        processes = [process for process in (self.java(), self.python()) if process is not None]
        if chosen is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                chosen.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if not wait_until(lambda: all(map(has_ended, processes)), 15):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait(30)

    def members(self) -> list[psutil.Process]:
        """The processes: the JVM, the program, and Spark's Python workers."""
        return with_descendants(self.process.pid)


@dataclass
class World:
    """A pipeline, its broker and its state. `environment`: additional variables of every driver."""

    folder: Path
    kafka: EmbeddedKafka
    name: str = "orders"
    environment: dict[str, str] = field(default_factory=dict)
    master: str = "local[2]"
    delta: bool = False
    """Whether the pipeline writes Delta tables."""
    drivers: list[Driver] = field(default_factory=list)
    home: Path = field(init=False)
    _submitted: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __post_init__(self) -> None:
        self.home = self.folder / "home"

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.kafka.bootstrap}

    @property
    def settings(self) -> Settings:
        own = {
            "SLUICE_HOME": str(self.home),
            "SLUICE_JARS": str(settings().jars),
            "SLUICE_PIPELINES": str(ROOT / "spark_jobs"),
            "SLUICE_KAFKA": json.dumps(self.config),
        }
        return Settings.read(
            own | {n: v for n, v in self.environment.items() if n.startswith("SLUICE_")}
        )

    def produce(self, count: int, **options: Any) -> None:
        """Send orders, some of them invalid and some late."""
        defaults = {"stores": 20, "bad_share": 0.02, "late_share": 0.05}
        produce_orders(self.config, count=count, **(defaults | options))

    def start(self, *arguments: str, **environment: str) -> Driver:
        """Start a driver."""
        submitted = self._submitted.enter_context(contextlib.ExitStack())
        spark_submit = submitted.enter_context(
            submission(
                self.settings,
                self.settings.kafka,
                self.master,
                [*arguments, self.name],
                delta=self.delta,
            )
        )
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")
        }
        log = self.folder / f"driver-{len(self.drivers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                spark_submit.command, cwd=self.folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=inherited | spark_submit.environment | self.environment | environment,
            )  # fmt: skip
        driver = Driver(process, log, submitted)
        self.drivers.append(driver)
        return driver

    def run(self, *arguments: str, expect: int = 0, **environment: str) -> Driver:
        """Run a driver to its end. Raises AssertionError unless its exit status is `expect`."""
        driver = self.start(*arguments, **environment)
        status = driver.wait()
        assert status == expect, f"the driver ended with {status}:\n{driver.output[-3000:]}"
        return driver

    def ledger(self) -> Ledger:
        return Ledger.open(self.settings.ledger)

    def published(self) -> int:
        """The newest published batch, -1 if none."""
        try:
            with self.ledger() as ledger:
                latest = ledger.snapshots.latest(self.name)
        except Exception:
            return -1
        return -1 if latest is None else latest.batch

    def await_batch(self, driver: Driver, batch: int) -> None:
        """Wait until a batch is published. Raises AssertionError if the driver has ended."""
        assert wait_until(lambda: self.published() >= batch or not driver.runs, LONGEST_S), (
            driver.output[-3000:]
        )
        assert driver.runs, driver.output[-3000:]

    def begun(self) -> int:
        """The newest planned batch, -1 if none."""
        with self.ledger() as ledger:
            planned = ledger.plans.newest(
                GenerationRef(self.name, ledger.generations.current_number(self.name) or 1)
            )
        return -1 if planned is None else planned.number

    def admin(self) -> AdminClient:
        return AdminClient({**self.config})

    def close(self) -> None:
        for driver in self.drivers:
            if driver.runs:
                driver.kill("all")
        self._submitted.close()


@contextlib.contextmanager
def world(
    name: str = "orders", environment: Mapping[str, str] | None = None, master: str = "local[2]"
) -> Iterator[World]:
    """A world for the block. Afterwards, its processes are stopped and its folder is deleted."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-fault-"))
    try:
        with EmbeddedKafka(folder / "kafka", free_port()) as kafka:
            opened = World(folder, kafka, name, dict(environment or {}), master)
            try:
                yield opened
            finally:
                opened.close()
    finally:
        if os.environ.get("KEEP_FAULTS") != "1":
            shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], bool], timeout: float = 60.0, every: float = 0.02) -> bool:
    """Wait until the condition is true. Returns False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(every)
    return False


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_java(process: psutil.Process) -> bool:
    return any(part.endswith("java") for part in _command(process)[:1])
