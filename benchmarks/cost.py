"""What a run costs: the time until its records can be queried, and the CPU time and memory of its processes."""

from __future__ import annotations

import json
import os
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

from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger

SLUICE = str(Path(sys.executable).parent / "sluice")
# Measuring must not take processor time that the programs need: a poll of the ledger costs 1.3 ms,
# and the memory of a large process several milliseconds, in which the process waits.
_POLL_S = 0.05
_SAMPLE_S = 0.25
_MEMORY_EVERY = 4


@dataclass(frozen=True)
class Cost:
    """The cost of one run."""

    wall_s: float
    """From the start of the process until its records can be queried."""
    cpu_s: float
    """CPU seconds of the process and its descendants by then, without the broker."""
    peak_gb: float
    """Their most memory at one time; a page that several processes share counts once (PSS)."""
    cpu_by_program: Mapping[str, float] = field(default_factory=dict)
    """The CPU seconds of Spark's JVM, of Python's workers, and of the driver with the other processes."""


JVM, WORKERS, DRIVER = "JVM", "workers", "driver"


class Usage:
    """The CPU time of a process and its descendants, and their peak memory, sampled while they run."""

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
        """Add a sample. Of processes that have ended, their last sample counts."""
        memory, with_memory = 0, self._samples % _MEMORY_EVERY == 0
        self._samples += 1
        with suppress(psutil.Error):
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.Error):
                    # A process that ends in between has neither a program nor CPU time.
                    times, program = process.cpu_times(), _program(process)
                    self._cpu_s[process.pid] = times.user + times.system
                    # The launcher's process becomes a JVM, and a JVM starts the daemon of Python's
                    # workers.
                    self._programs[process.pid] = program
                    memory += process.memory_full_info().pss if with_memory else 0
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
    """Run a pipeline once with `sluice run`, until its newest snapshot includes so many records.

    `options` are those of the command, and `command` is the path of `sluice`. Other settings than
    these keep their defaults, also if the environment contains them. The processes of a cluster are
    not measured.
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
    """The cost of a command until it ends."""
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
    """The environment of a `sluice` command whose other settings have their defaults."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")
    }
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
    # The driver forks the daemon that forks the workers, so they have the driver's command line.
    is_forked = parent is not None and parent.cmdline() == command
    return (
        WORKERS if is_forked or any("worker_daemon" in argument for argument in command) else DRIVER
    )


@contextmanager
def stopping(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Stop a process and its descendants, unless it has ended by the end of the block."""
    try:
        yield
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.terminate()
            process.terminate()
            process.wait()


def _ledger(path: Path, process: subprocess.Popen[Any]) -> Ledger:
    """Open the ledger once the run has created it, or has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(_POLL_S)
    return Ledger.open(f"sqlite:///{path}")


def published(ledger: Ledger, pipeline: str) -> int:
    """The number of records that the newest snapshot includes."""
    return sum(sum(partitions.values()) for partitions in ledger.positions(pipeline).values())
