"""What a run costs: the time until its records can be queried, and its CPU time and memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import inspect

from sluice.settings import settings
from sluice.state.database import database_url, open_engine
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import SNAPSHOTS

SLUICE = str(Path(sys.executable).parent / "sluice")
# Measure seldom, so that the programs keep their processor time: a poll of the ledger takes 1.3 ms.
# Reading the memory of a large process stops the process for several milliseconds.
_POLL_S = 0.05
_SAMPLE_S = 0.25
_MEMORY_EVERY = 4


@dataclass(frozen=True)
class Cost:
    """The cost of one run."""

    wall_s: float
    """From the start of the process until its records can be queried."""
    cpu_s: float
    """CPU seconds of the process and its descendants in this time, without the broker."""
    peak_gb: float
    """The peak of their total memory; a page that several processes share counts once (PSS)."""
    cpu_by_program: Mapping[str, float] = field(default_factory=dict)
    """The CPU seconds of Spark's JVM, of Python's workers, and of the driver with all remaining
    processes."""


JVM, WORKERS, DRIVER = "JVM", "workers", "driver"


class Usage:
    """The CPU time and peak memory of a process and its descendants, sampled while they run."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[int, float] = {}
        self._programs: dict[int, str] = {}
        self._samples = 0
        self.peak_gb = 0.0

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values())

    @property
    def cpu_by_program(self) -> dict[str, float]:
        """The CPU seconds of the JVM, the workers and the driver."""
        seconds = dict.fromkeys((JVM, WORKERS, DRIVER), 0.0)
        for pid, cpu_s in self._cpu_s.items():
            seconds[self._programs[pid]] += cpu_s
        return seconds

    def sample(self) -> None:
        """Add a sample. The last sample of a process that has ended still counts."""
        memory = 0
        with_memory = self._samples % _MEMORY_EVERY == 0
        self._samples += 1
        with suppress(psutil.Error):
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.Error):
                    # If a process ends between these two calls, its program and its CPU time are
                    # both left out.
                    times, program = process.cpu_times(), _program(process)
                    self._cpu_s[process.pid] = times.user + times.system
                    # The launcher's process becomes a JVM, and a JVM starts the daemon of Python's
                    # workers.
                    self._programs[process.pid] = program
                    if with_memory:
                        memory += process.memory_full_info().pss
        self.peak_gb = max(self.peak_gb, memory / 1e9)

    @classmethod
    @contextmanager
    def of(cls, pid: int) -> Iterator[Usage]:
        """Sample a process during the block."""
        usage, ended = cls(pid), threading.Event()

        def watch() -> None:
            while not ended.wait(_SAMPLE_S):
                usage.sample()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield usage
        finally:
            ended.set()
            thread.join()


def run(
    pipeline: str,
    *,
    home: Path,
    pipelines: Path,
    kafka: Mapping[str, str],
    records: int,
    variables: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    command: str = SLUICE,
) -> Cost:
    """Run a pipeline once with `sluice run`, until its newest snapshot includes `records` records.

    `options` are options of the command, and `command` is the path of `sluice`. All settings except
    `variables` have their defaults, even if the environment sets them. The processes of a cluster
    are not measured.
    """
    own = environment(home, pipelines, kafka) | {**(variables or {})}
    home.mkdir(exist_ok=True)
    with (home / "run.log").open("w+") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            [command, "run", pipeline, *options], env=own, stdout=log, stderr=subprocess.STDOUT
        )
        with stopping(process), Usage.of(process.pid) as usage:
            with _ledger(home / "ledger.sqlite", process) as ledger:
                while published(ledger, pipeline) < records:
                    if process.poll() is not None and published(ledger, pipeline) < records:
                        log.seek(0)
                        raise SystemExit(
                            f"The run of {pipeline} ended too early:\n{log.read()[-3000:]}"
                        )
                    time.sleep(_POLL_S)
            wall_s = time.monotonic() - begun
            usage.sample()
            cost = Cost(wall_s, usage.cpu_s, usage.peak_gb, usage.cpu_by_program)
            process.wait()
    return cost


def of_command(*command: str, environment: Mapping[str, str]) -> Cost:
    """Run a command until it ends, and return its cost."""
    begun = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with stopping(process), Usage.of(process.pid) as usage:
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-3000:]}")
    return Cost(time.monotonic() - begun, usage.cpu_s, usage.peak_gb)


def environment(home: Path, pipelines: Path, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return a `sluice` command's environment, without this process's own SLUICE_ settings."""
    inherited: dict[str, str] = {}
    for name, value in os.environ.items():
        if not name.startswith("SLUICE_"):
            inherited[name] = value
    # With this checkout's PYTHONPATH, the `sluice` of another checkout would run this checkout's
    # code.
    inherited.pop("PYTHONPATH", None)
    return {
        **inherited,
        "SLUICE_HOME": str(home),
        "SLUICE_JARS": str(settings().jars),
        "SLUICE_PIPELINES": str(pipelines),
        "SLUICE_KAFKA": json.dumps(dict(kafka)),
    }


def _program(process: psutil.Process) -> str:
    if process.name() == "java":
        return JVM
    command, parent = process.cmdline(), process.parent()
    # The driver forks the daemon that forks the workers, so workers have the driver's command line.
    is_forked = parent is not None and parent.cmdline() == command
    is_daemon = any("worker_daemon" in argument for argument in command)
    return WORKERS if is_forked or is_daemon else DRIVER


@contextmanager
def stopping(process: subprocess.Popen[Any]) -> Iterator[None]:
    """After the block, stop a process and its descendants, unless the process has ended."""
    try:
        yield
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()
            process.terminate()
            process.wait()


def _ledger(path: Path, process: subprocess.Popen[Any]) -> Ledger:
    """Open the ledger once the run has created it, or has ended.

    Leave its tables as they are: `Ledger.open` would migrate those of another checkout, which
    could then no longer open its own ledger.
    """
    engine = open_engine(database_url(f"sqlite:///{path}"))
    while process.poll() is None:
        if path.exists() and inspect(engine).has_table(SNAPSHOTS.name):
            break
        time.sleep(_POLL_S)
    return Ledger(engine)


def percentile(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1]


def published(ledger: Ledger, pipeline: str) -> int:
    """Return the number of records that the newest snapshot includes."""
    snapshot = ledger.snapshots.latest(pipeline)
    if snapshot is None:
        return 0
    return sum(sum(partitions.values()) for partitions in snapshot.positions.values())
