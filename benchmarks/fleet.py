"""Runs of many small pipelines, cold and with a warm driver: `fleet.py --pipelines 60`.

In each round, some pipelines get records, and one run of each of them starts at once, with `sluice
run`; a pool limits how many of these runs are processed at the same time. The freshness of a
pipeline is the time from its last record to the end of its run. Airflow is not part of it: `make
bench-freshness` measures the way through Airflow. With `--peer`, as many Kafka Streams programs as
fit run on the same machine and get the same records (`fleet_peer.py`), and the warm driver is also
measured while idle.

The CPU time is that of all processes, from the start of the driver to its end, as the kernel has
counted it, without the broker. The memory is the peak of all processes together; a page that
several processes share counts once.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks import fleet_peer
from benchmarks.cost import SLUICE, environment, percentile
from sluice.kafka.topics import Topic, create_topics, produce
from sluice.local.broker import EmbeddedKafka
from sluice.support.processes import has_ended
from sluice.warm.warm_driver import READY
from tests.support.ports import free_port
from tests.support.signals import interrupt_on_sigterm

PIPELINE = '''"""Counts records by key."""

from sluice import Pipeline

pipeline = Pipeline("{name}", workers=1)
pipeline.stream("{name}", value=str).group_by_key().count(store="{name}_count")
'''
KEYS = 50
_PR_SET_CHILD_SUBREAPER = 36
_READY_S = 180.0
_WIDTH = 140

console = Console(stderr=True)


@dataclass
class Measured:
    """The cost of all rounds, either of cold runs or of runs with a warm driver."""

    name: str
    seconds: list[float] = field(default_factory=list)
    """The freshness of each pipeline in each round."""
    run_seconds: list[float] = field(default_factory=list)
    """The time of each run, without its wait for a slot of the pool."""
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    peak_gb: float = 0.0
    fixed_cpu_s: float = 0.0
    """The part of the CPU time that starting and ending the warm driver has taken."""
    idle_cores: float = 0.0
    idle_gb: float = 0.0
    """The CPU time per second, and the memory, of a warm driver after its rounds."""


@dataclass(frozen=True)
class Fleet:
    """Pipelines with their topics, and how they are run."""

    home: Path
    kafka: dict[str, str]
    names: Sequence[str]
    records: int
    places: int

    @property
    def pipelines(self) -> Path:
        return self.home / "pipelines"

    def write(self) -> None:
        self.pipelines.mkdir(parents=True)
        for name in self.names:
            (self.pipelines / f"{name}.py").write_text(PIPELINE.format(name=name))
        create_topics(self.kafka, [Topic(name, 2, 1) for name in self.names])

    def round(self, active: Sequence[str], measured: Measured, *, warm: str) -> None:
        """Send records to some pipelines, and run each of them until it has published them."""
        begun: dict[str, float] = {}
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in active:
            send(self.kafka, name, self.records)
            begun[name] = time.monotonic()
            waiting.put(name)
        variables = {**environment(self.home, self.pipelines, self.kafka), "SLUICE_WARM": warm}
        failed: list[str] = []

        def work() -> None:
            while True:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                with (self.home / f"{name}.log").open("w") as log:
                    status = subprocess.call(
                        [SLUICE, "run", name], env=variables, stdout=log, stderr=log
                    )
                measured.run_seconds.append(time.monotonic() - started)
                measured.seconds.append(time.monotonic() - begun[name])
                if status:
                    failed.append((self.home / f"{name}.log").read_text()[-2_000:])

        places = [threading.Thread(target=work) for _ in range(self.places)]
        for place in places:
            place.start()
        for place in places:
            place.join()
        if failed:
            raise SystemExit(f"A run has failed:\n{failed[0]}")

    @contextmanager
    def warm_driver(self) -> Iterator[None]:
        """Run a warm driver during the block."""
        variables = environment(self.home, self.pipelines, self.kafka)
        log = self.home / "warm-driver.log"
        with log.open("w") as output:
            driver = subprocess.Popen(
                [SLUICE, "warm", "--at-once", str(self.places)],
                env=variables,
                stdout=output,
                stderr=output,
            )
            until = time.monotonic() + _READY_S
            while READY not in log.read_text():
                if driver.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"The warm driver does not start:\n{log.read_text()}")
                time.sleep(0.05)
            try:
                yield
            finally:
                driver.send_signal(signal.SIGTERM)
                driver.wait()


def main(
    pipelines: Annotated[int, typer.Option(min=1, help="Number of pipelines.")] = 60,
    active: Annotated[int, typer.Option(min=1, help="Pipelines with records in a round.")] = 10,
    records: Annotated[int, typer.Option(min=1, help="Records of a pipeline in a round.")] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 3,
    places: Annotated[int, typer.Option(min=1, help="Most runs at the same time.")] = 2,
    cold: Annotated[bool, typer.Option(help="Also measure runs with their own drivers.")] = True,
    peer: Annotated[bool, typer.Option(help="Also measure Kafka Streams programs.")] = False,
    idle_s: Annotated[float, typer.Option(help="Seconds of the measurement while idle.")] = 30.0,
) -> None:
    """Run the rounds cold, unless `--no-cold`, and then with a warm driver."""
    # Processes whose parents have ended become children of this process, which waits for them. So
    # their CPU time counts.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    results: list[Measured] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-fleet-") as folder,
        EmbeddedKafka(Path(folder) / "kafka", free_port()) as broker,
    ):
        kafka = {"bootstrap.servers": broker.bootstrap}
        for name in ("cold", "warm") if cold else ("warm",):
            names = [f"{name}{number}" for number in range(pipelines)]
            fleet = Fleet(Path(folder) / name, kafka, names, records, places)
            fleet.write()
            # This first run is not measured: it writes an archive of classes, and the ledger.
            fleet.round(names[:1], Measured(""), warm="off")
            results.append(measure(fleet, name, active, rounds, idle_s if peer else 0.0))
        programs: fleet_peer.Cost | None = None
        if peer:
            home = Path(folder) / "peer"
            home.mkdir()
            names = [f"peer{number}" for number in range(pipelines)]
            create_topics(kafka, [Topic(name, 2, 1) for name in names])
            programs = fleet_peer.measure(
                home,
                kafka,
                names,
                active,
                rounds,
                records,
                idle_s,
                lambda topic: send(kafka, topic, records),
                console.print,
            )
    wide = Console(width=_WIDTH)
    wide.print(table(results))
    if programs is not None:
        wide.print(table_of_both(results[-1], programs, pipelines))
    print(json.dumps([vars(measured) for measured in results]), file=sys.stderr)


def send(kafka: dict[str, str], topic: str, records: int) -> None:
    keys = (f"key-{number % KEYS}" for number in range(records))
    produce(kafka, topic, ((key, b"x", 0) for key in keys))


def measure(fleet: Fleet, name: str, active: int, rounds: int, idle_s: float) -> Measured:
    measured = Measured(name)
    before = cpu_of_children()
    if name == "warm":
        with fleet.warm_driver():
            pass
        measured.fixed_cpu_s = cpu_of_children() - before
        before = cpu_of_children()
    with memory_of_children(measured):
        if name == "warm":
            with fleet.warm_driver():
                run_rounds(fleet, measured, active, rounds, warm="use")
                if idle_s:
                    measure_idle(measured, idle_s)
        else:
            run_rounds(fleet, measured, active, rounds, warm="off")
    measured.cpu_s = cpu_of_children() - before
    return measured


def run_rounds(fleet: Fleet, measured: Measured, active: int, rounds: int, *, warm: str) -> None:
    begun = time.monotonic()
    for number in range(rounds):
        first = number * active
        chosen = [fleet.names[(first + place) % len(fleet.names)] for place in range(active)]
        fleet.round(chosen, measured, warm=warm)
        console.print(f"{measured.name}: round {number + 1} of {rounds}")
    measured.elapsed_s = time.monotonic() - begun


def measure_idle(measured: Measured, seconds: float) -> None:
    """Measure all descendants but the broker while nothing runs."""
    before, begun = _cpu_now(), time.monotonic()
    time.sleep(seconds)
    measured.idle_cores = (_cpu_now() - before) / (time.monotonic() - begun)
    measured.idle_gb = _memory_now()


def _descendants() -> Iterator[psutil.Process]:
    """Yield all descendants that run, except the broker."""
    for child in psutil.Process().children(recursive=True):
        if "kafka.Kafka" not in " ".join(_command(child)) and not has_ended(child):
            yield child


def _cpu_now() -> float:
    seconds = 0.0
    for child in _descendants():
        with suppress(psutil.Error):
            times = child.cpu_times()
            seconds += times.user + times.system
    return seconds


def _memory_now() -> float:
    """Return the memory of all descendants but the broker, in GB."""
    size = 0
    for child in _descendants():
        with suppress(psutil.Error):
            size += child.memory_full_info().pss
    return size / 1e9


def cpu_of_children() -> float:
    """Return the CPU seconds of all descendants that have ended, after waiting for these."""
    own = psutil.Process()
    for child in own.children(recursive=True):
        # The broker keeps running, so do not wait for it.
        if "kafka.Kafka" in " ".join(_command(child)):
            continue
        with suppress(psutil.TimeoutExpired):
            child.wait(60)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def memory_of_children(measured: Measured) -> Iterator[None]:
    """Sample the memory of all descendants but the broker during the block."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(0.5):
            measured.peak_gb = max(measured.peak_gb, _memory_now())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def table(results: Sequence[Measured]) -> Table:
    columns = (
        *("driver", "runs", "run p50 s", "freshness p50 s", "freshness p99 s"),
        *("CPU s a run", "CPU s of the driver", "all s", "peak GB"),
    )
    shown = Table(*columns, box=None)
    for measured in results:
        runs = len(measured.seconds)
        p99 = percentile(measured.seconds, 99)
        shown.add_row(
            measured.name,
            str(runs),
            f"{statistics.median(measured.run_seconds):.2f}",
            f"{statistics.median(measured.seconds):.2f}",
            f"{p99:.2f}",
            f"{(measured.cpu_s - measured.fixed_cpu_s) / runs:.2f}",
            f"{measured.fixed_cpu_s:.1f}",
            f"{measured.elapsed_s:.1f}",
            f"{measured.peak_gb:.2f}",
        )
    return shown


def table_of_both(warm: Measured, programs: fleet_peer.Cost, pipelines: int) -> Table:
    """Compare a warm driver for all pipelines with a Kafka Streams program for each of them."""
    columns = (
        *("", "processes", "idle cores", "idle GB", "CPU s to start"),
        *("CPU s of a fed one", "freshness p50 s", "freshness p99 s"),
    )
    shown = Table(*columns, box=None)
    fed_cpu_s = (warm.cpu_s - warm.fixed_cpu_s) / len(warm.seconds)
    kinds = (
        (
            "Sluice, warm",
            f"1 for {pipelines}",
            warm.idle_cores,
            warm.idle_gb,
            warm.fixed_cpu_s,
            fed_cpu_s,
        ),
        (
            "Kafka Streams",
            f"{programs.programs} of {pipelines}",
            programs.idle_cores,
            programs.memory_gb,
            programs.start_cpu_s,
            programs.fed_cpu_s,
        ),
    )
    for (name, processes, *figures), seconds in zip(
        kinds, (warm.seconds, programs.seconds), strict=True
    ):
        all_figures = (*figures, statistics.median(seconds), percentile(seconds, 99))
        shown.add_row(name, processes, *[f"{figure:.2f}" for figure in all_figures])
    return shown


if __name__ == "__main__":
    interrupt_on_sigterm()
    typer.run(main)
