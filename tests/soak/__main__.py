"""Lets a run linger under steady traffic and queries, and shows what grows: `python -m tests.soak --minutes 10`.

Kafka, all components of Airflow and a state server run on this machine. Airflow starts the run,
which writes one worker itself and the other through the state server. Each sample is a line; the
table at the end compares the first samples after the warm-up with the last ones. The exit status is
1 if anything grows that should not. The folder with all logs is then kept.
"""

from __future__ import annotations

import math
import os
import secrets
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import httpx
import psutil
import typer
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from sluice.errors import SluiceError
from sluice.kafka.topics import Topic, create_topics
from sluice.local.platform import LocalPlatform
from sluice.local.service import Service, members, stop
from sluice.operations.snapshot_retention import retain
from sluice.provision.machine_checks import free_port
from sluice.settings import Settings, settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from tests.soak.sizes import Size, cpu_seconds, growth, mb_in, size_of
from tests.support.kept_folders import kept_on_failure
from tests.support.signals import interrupt_on_sigterm

PIPELINE = '''"""Counts, windows, sessions and a join: every kind of state."""

from msgspec import Struct

from sluice import Pipeline, session, tumbling, within


class Visit(Struct):
    number: int


pipeline = Pipeline("soak", workers=2, linger="3 hours")
visits = pipeline.stream("visits", value=Visit)
sales = pipeline.stream("sales", value=Visit)
visits.group_by_key().count(store="visits_by_user")
in_windows = visits.group_by_key().windowed_by(tumbling("10 seconds", grace="2 seconds"), retention="1 minute")
in_windows.count(store="visits_in_window").suppress_until_window_closes().to("visits_closed")
in_sessions = visits.group_by_key().windowed_by(session("5 seconds", grace="2 seconds"), retention="1 minute")
in_sessions.count(store="visits_in_session")
visits.join(sales, within("1 second", grace="1 second")).to("visits_with_sales")
'''
TOPICS = ("visits", "sales", "visits_closed", "visits_with_sales")
KEYS = 2_000
REF = GenerationRef("soak", 1)

SAMPLE_S = 20.0
WARM_UP_MINUTES = 3.0
"""By then, the caches and thread pools of the JVM are full, and Spark keeps as much of earlier
queries as it may."""
KEPT_SNAPSHOTS = 30
RETENTION_S = 60.0
START_S = 300.0
ANSWERS = {"200", "404"}
"""A user may have no window at the moment."""

LIMITS = {
    "driver": Size(10, 10, 25),
    # Spark's thread pools and Kafka consumers vary with the rate of batches; the heap is limited.
    "JVM": Size(60, 60, 150),
    "Python workers": Size(10, 20, 40),
    "state server": Size(10, 10, 25),
    "API server": Size(10, 20, 60),
    "triggerer": Size(10, 10, 40),
}
"""How much each kind of process may grow after the warm-up."""
FOLDER_LIMITS = {"ledger": 10.0, "shards": 20.0, "log": 5.0, "temporary files": 50.0}
"""How many MB each folder may grow in an hour. The ledger keeps a small row of each batch, and the log a line. Spark
deletes the files of shuffles every five minutes."""

console = Console(stderr=True, width=160)


@dataclass
class Traffic:
    """Writes records at a steady rate, and queries the stores through Airflow, until it is stopped."""

    platform: LocalPlatform
    rate: int
    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """Status, or error without an answer → number of queries."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=work) for work in (self._write, self._ask)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    def _write(self) -> None:
        producer = Producer({**self.platform.kafka_config, "linger.ms": 50})
        begun = time.monotonic()
        while not self._stopped.wait(0.05):
            while self.sent < (time.monotonic() - begun) * self.rate:
                topic = "sales" if self.sent % 3 == 0 else "visits"
                # The multiplier spreads consecutive records over the keys.
                producer.produce(
                    topic, b'{"number":%d}' % self.sent, f"user-{self.sent * 7_919 % KEYS}"
                )
                self.sent += 1
            producer.poll(0)
        producer.flush()

    def _ask(self) -> None:
        stores = "/sluice/v1/stores"
        with self.platform.as_user() as airflow:
            number = 0
            while not self._stopped.wait(0.1):
                number += 1
                user = f"user-{number % KEYS}"
                paths = (
                    f"{stores}/visits_by_user/keys/{user}",
                    f"{stores}/visits_in_window/keys/{user}/windows",
                    f"{stores}/visits_in_session?limit=100",
                    "/sluice/v1/pipelines",
                )
                try:
                    answer = str(airflow.ask(paths[number % len(paths)]).status_code)
                except httpx.HTTPError as error:
                    answer = type(error).__name__
                self.answers[answer] += 1


@dataclass(frozen=True)
class Sample:
    """What one look at the processes and folders has found."""

    minute: float
    records: int
    """How many records have been sent."""
    batches: int
    batch_ms: float
    """Median duration of the batches since the last sample."""
    cpu_s: float
    """CPU time of the driver, the JVM and the Python workers."""
    processes: dict[str, Size]
    folders: dict[str, float]
    """Folder → MB."""


@dataclass
class Soak:
    """The processes and folders of the platform and of its run."""

    platform: LocalPlatform
    server: Service
    settings: Settings
    begun: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)

    def sample(self, records: int) -> Sample:
        """Take a sample when `records` records have been sent."""
        with Ledger.open(self.settings.ledger) as ledger:
            batches = (ledger.snapshots.last_batch(REF) or 0) + 1
            before = self.samples[-1].batches if self.samples else 0
            audits = ledger.audits.recent(REF, max(batches - before, 1))
        found = self.processes()
        home = self.platform.home
        sample = Sample(
            minute=(time.monotonic() - self.begun) / 60,
            records=records,
            batches=batches,
            batch_ms=statistics.median(sum(audit.phases.values()) for audit in audits),
            cpu_s=sum(cpu_seconds(found[kind]) for kind in ("driver", "JVM", "Python workers")),
            processes={kind: size_of(processes) for kind, processes in found.items()},
            folders={
                "ledger": mb_in(*home.glob("ledger.sqlite*")),
                "shards": mb_in(home / "shards"),
                "log": mb_in(home / "airflow" / "logs" / "dag_id=soak"),
                "temporary files": mb_in(home / "tmp"),
            },
        )
        self.samples.append(sample)
        return sample

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The processes of each kind."""
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in LIMITS}
        found["API server"] = self.platform.processes("api-server")
        found["triggerer"] = self.platform.processes("triggerer")
        found["state server"] = members({self.server.process.pid})
        for process in psutil.process_iter():
            try:
                command = " ".join(process.cmdline())
                if "sluice" in command and process.environ().get("SLUICE_HOME") == str(
                    self.platform.home
                ):
                    parent = process.parent()
                    # The driver has forked the daemon that forks the workers, so they have its
                    # command line.
                    is_forked = parent is not None and parent.cmdline() == process.cmdline()
                    if "sluice.engine.worker_daemon" in command or is_forked:
                        found["Python workers"].append(process)
                    elif "sluice/driver.py" in command:
                        found["JVM" if process.name() == "java" else "driver"].append(process)
            except psutil.Error:
                pass  # the process has ended, or belongs to another user
        return found

    def retain(self) -> None:
        """Apply retention, as Airflow's daily DAG does, so that shards and ledger do not grow with each batch."""
        with Ledger.open(self.settings.ledger) as ledger:
            retain(ledger, REF.pipeline, KEPT_SNAPSHOTS, keep_seconds=0)


def main(
    minutes: Annotated[
        float,
        typer.Option(min=1, max=58, help="How long to watch. A run lingers for at most an hour."),
    ] = 10.0,
    rate: Annotated[int, typer.Option(min=1, help="Records per second.")] = 300,
) -> None:
    """Show whether a lingering run, or a process beside it, grows."""
    token = secrets.token_urlsafe()
    os.environ["SLUICE_SERVER_TOKEN"] = token  # retention writes to the state server
    settings.cache_clear()
    with kept_on_failure("sluice-soak-") as home:
        (home / "pipelines").mkdir()
        (home / "pipelines" / "soak.py").write_text(PIPELINE)
        (home / "tmp").mkdir()
        environment = {"SLUICE_SERVER_TOKEN": token, "TMPDIR": str(home / "tmp")}
        with LocalPlatform(home, pipelines=home / "pipelines", environment=environment) as platform:
            platform.start(lambda: make_topics(platform))
            command = [
                str(Path(sys.executable).parent / "sluice"),
                "serve",
                "--pipeline",
                "soak",
                "--workers",
                "1",
            ]
            server = Service.start(
                "server",
                [*command, "--port", str(free_port())],
                platform.variables(),
                platform.logs / "server.log",
            )
            try:
                soak = Soak(platform, server, Settings.read(platform.variables()))
                traffic = Traffic(platform, rate)
                with traffic.running():
                    watch(soak, traffic, minutes)
            finally:
                stop([server])
        grown = report(soak)
        Console().print("grown: " + (", ".join(grown) or "nothing"))
        failed = dict(traffic.answers)
        for answer in ANSWERS:
            failed.pop(answer, None)
        if failed:
            Console().print(f"queries failed: {failed}")
        if grown or failed:
            raise typer.Exit(1)


def make_topics(platform: LocalPlatform) -> None:
    create_topics(platform.kafka_config, [Topic(name, 2, 1) for name in TOPICS])


def watch(soak: Soak, traffic: Traffic, minutes: float) -> None:
    """Take samples, and apply retention, until the time is up."""
    for _ in soak.platform.ticks(START_S, "No batch has been published"):
        with Ledger.open(soak.settings.ledger) as ledger:
            if ledger.snapshots.last_batch(REF) is not None:
                break
    soak.begun = retained = time.monotonic()
    traffic.answers.clear()  # before the first snapshot, a query has nothing to answer
    while (time.monotonic() - soak.begun) < minutes * 60:
        time.sleep(SAMPLE_S)
        soak.server.check()
        if time.monotonic() - retained > RETENTION_S:
            retained = time.monotonic()
            soak.retain()
        console.print(line(soak, traffic))


def line(soak: Soak, traffic: Traffic) -> str:
    before = soak.samples[-1] if soak.samples else None
    sample = soak.sample(traffic.sent)
    cpu = "" if before is None else f"{cpu_per_thousand(before, sample):.2f}"
    sizes = (
        f"{kind} {size.threads} {size.files} {size.mb:.0f}"
        for kind, size in sample.processes.items()
    )
    folders = (f"{folder} {mb:.1f}" for folder, mb in sample.folders.items())
    return (
        f"{sample.minute:.1f} min, {sample.records} records, {traffic.answers.total()} answers, "
        f"{sample.batches} batches of {sample.batch_ms:.0f} ms, {cpu} CPU s per 1,000 records | "
        f"threads files MB: {', '.join(sizes)} | MB: {', '.join(folders)}"
    )


def cpu_per_thousand(before: Sample, after: Sample) -> float:
    """Return the CPU seconds of a run for a thousand records between two samples."""
    return (after.cpu_s - before.cpu_s) / max(after.records - before.records, 1) * 1000


def report(soak: Soak) -> list[str]:
    """Print what has grown after the warm-up. Returns what has grown more than it may."""
    last = soak.samples[-1]
    warm = [
        sample for sample in soak.samples if sample.minute >= min(WARM_UP_MINUTES, last.minute / 2)
    ]
    batches = warm[-1].batches - warm[0].batches
    shown = Table(
        "after the warm-up", "first", "last", "growth", "per 100 batches", "limit", box=None
    )
    for column in shown.columns[1:]:
        column.justify = "right"
    grown: list[str] = []

    def add(name: str, values: list[float], limit: float) -> None:
        grew = growth(values)
        per = grew / max(batches, 1) * 100
        shown.add_row(
            name,
            f"{values[0]:.1f}",
            f"{values[-1]:.1f}",
            f"{grew:+.1f}",
            f"{per:+.2f}",
            f"{limit:.1f}",
        )
        if grew > limit:
            grown.append(f"{name} {grew:+.1f}")

    for kind, limits in LIMITS.items():
        for place, (what, limit) in enumerate(zip(("threads", "files", "MB"), limits, strict=True)):
            add(f"{kind}: {what}", [sample.processes[kind][place] for sample in warm], limit)
    for folder, limit in FOLDER_LIMITS.items():
        add(f"{folder}: MB", [sample.folders[folder] for sample in warm], limit)
    # A batch also takes longer when other programs need the processors, so its duration has no
    # limit.
    cpu = [cpu_per_thousand(before, after) for before, after in pairwise(warm)]
    add("CPU of 1,000 records: ms", [1000 * seconds for seconds in cpu], 500 * cpu[0])
    add("duration of a batch: ms", [sample.batch_ms for sample in warm], math.inf)
    Console(width=120).print(shown)
    missing = [kind for kind in LIMITS if not last.processes[kind].threads]
    return grown + [f"{kind} is gone" for kind in missing] + ([] if batches else ["no batches"])


if __name__ == "__main__":
    interrupt_on_sigterm()
    try:
        typer.run(main)
    except SluiceError as error:
        console.print(f"{error}")
        sys.exit(1)
