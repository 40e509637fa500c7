"""Times a million records through each kind of operator, with a real broker: `operators.py [--records N] [--keys N]`.

Each pipeline runs in a separate process, one after the other: a count, statistics of doubles, a count by a Python
function, a processor, and a join of two streams (with half of the records each). Seconds are for the whole run,
including the start of Spark; records per second are for the batches after the first, when everything is warm. CPU
seconds are those of the JVM, of the driver's Python process and of Spark's Python workers; they depend less on what
else the machine does. Memory is the maximum for all of the driver's processes, during the first two and the last two
batches: it must not grow with the input.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import typer
from rich.console import Console
from rich.table import Table

from sluice import Pipeline, within
from sluice.kafka.brokers import producer_of
from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings, settings
from sluice.state.ledger.ledger import Ledger

START_MS = 1_670_000_000_000
SMALL = 1_000
"""Batches with at most this many records are ignored: the last batch may have only a few."""
CPU = ("CPU s, JVM", "CPU s, driver", "CPU s, workers")


class Click(msgspec.Struct):
    """A record of the benchmark."""

    number: int


class Counting:
    """Counts the records of each key, and forwards every hundredth count."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        count = self.context.store("count").get("n") or 0
        self.context.store("count").put("n", count + 1)
        if (count + 1) % 100 == 0:
            self.context.forward(record.key, count + 1)


def count(name: str) -> Pipeline:
    """A count, which is added up in any order."""
    pipeline = Pipeline(name)
    pipeline.stream("clicks", value=Click).group_by_key().count(store="clicks_count")
    return pipeline


def statistics(name: str) -> Pipeline:
    """The mean and the standard deviation of doubles, record by record."""
    pipeline = Pipeline(name)
    clicks = pipeline.stream("clicks", value=Click).select(x="number / 7").group_by_key()
    clicks.aggregate(store="clicks_statistics", mean="avg(x)", deviation="stddev(x)")
    return pipeline


def python(name: str) -> Pipeline:
    """A count by a Python function, in the order of records."""
    pipeline = Pipeline(name)
    clicks = pipeline.stream("clicks", value=Click).group_by_key()
    clicks.aggregate(int, _one_more, store="clicks_python", returns=int)
    return pipeline


def process(name: str) -> Pipeline:
    """A processor with a store."""
    pipeline = Pipeline(name)
    pipeline.stream("clicks", value=Click).process(Counting, stores={"count": int}, returns=int).output.to("hundreds")
    return pipeline


def join(name: str) -> Pipeline:
    """A join of two streams within a second."""
    pipeline = Pipeline(name)
    left, right = (pipeline.stream(topic, value=Click) for topic in ("left", "right"))
    left.join(right, within("1 second", grace="1 second")).to("joined")
    return pipeline


def _one_more(count: int, value: Any) -> int:
    return count + 1


KINDS: dict[str, Callable[[str], Pipeline]] = {
    "count": count, "statistics": statistics, "python": python, "process": process, "join": join,
}  # fmt: skip


def main(
    records: Annotated[int, typer.Option(help="Number of records.")] = 1_000_000,
    keys: Annotated[int, typer.Option(help="Number of keys.")] = 50_000,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help=f"One of {', '.join(KINDS)}; can be repeated.")
    ] = None,
) -> None:
    """Run the pipelines one after the other, and print records per second and memory."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka"), quick=False) as kafka:
        kafka.create_topics({"clicks": 2, "left": 2, "right": 2})
        produce(kafka.bootstrap, {"clicks": records, "left": records // 2, "right": records // 2}, keys)
        table = Table("pipeline", "seconds", "records/s, warm", "to count", *CPU, "GB, early", "GB, late")
        first = 0.0
        for kind in kinds or KINDS:
            result = run(kind, kafka.bootstrap, Path(folder, kind))
            first = first or result.speed
            figures = f"{result.seconds:.1f}", f"{result.speed:,.0f}", f"{result.speed / first:.2f}"
            cpu = (f"{result.cpu_s[name]:.1f}" for name in CPU)
            table.add_row(kind, *figures, *cpu, f"{result.early_gb:.2f}", f"{result.late_gb:.2f}")
        Console().print(table)


def produce(bootstrap: str, counts: dict[str, int], keys: int) -> None:
    """Write records with random keys, one per millisecond of event time; a tenth is up to two seconds out of order."""
    chance = random.Random(7)
    producer = producer_of(
        {"bootstrap.servers": bootstrap}, {"linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    for topic, count in counts.items():
        for number in range(count):
            timestamp = START_MS + number - chance.randrange(2_000) * (chance.random() < 0.1)
            while True:
                try:
                    producer.produce(
                        topic, key=f"key-{chance.randrange(keys)}", value=b'{"number":%d}' % number, timestamp=timestamp
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
    producer.flush()


@dataclass
class Result:
    """The figures of one pipeline."""

    seconds: float
    speed: float
    """Records per second."""
    cpu_s: dict[str, float]
    early_gb: float
    late_gb: float


@dataclass
class Usage:
    """The memory and CPU time of a process and its descendants, sampled while they run."""

    memory: list[tuple[datetime, float]] = field(default_factory=list)
    """Time of the sample and GB."""
    cpu_s: dict[int, tuple[str, float]] = field(default_factory=dict)
    """Process id → one of `CPU`, and seconds."""

    def sample(self, pid: int) -> None:
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
        self.memory.append((datetime.now(UTC), sum(process.memory_info().rss for process in processes) / 1e9))
        for process in processes:
            times = process.cpu_times()
            kind = "driver" if process == parent else "JVM" if "java" in process.name() else "workers"
            self.cpu_s[process.pid] = f"CPU s, {kind}", times.user + times.system


def run(kind: str, bootstrap: str, home: Path) -> Result:
    """Run a pipeline in a separate process."""
    variables = {"SLUICE_HOME": str(home), "SLUICE_KAFKA": json.dumps({"bootstrap.servers": bootstrap})}
    environment = {**os.environ, **variables, "SLUICE_JARS": str(settings().jars), "PYSPARK_PYTHON": sys.executable}
    begun = time.monotonic()
    child = subprocess.Popen([sys.executable, __file__, kind], env=environment)
    usage = Usage()
    threading.Thread(target=_watch, args=(child.pid, usage), daemon=True).start()
    if child.wait():
        raise SystemExit(f"{kind} failed with status {child.returncode}")
    seconds = time.monotonic() - begun
    with Ledger.open(Settings.read(variables).ledger) as ledger:
        snapshots = [
            snapshot
            for snapshot in ledger.snapshots.recent(f"bench_{kind}", limit=1000)[::-1]
            if snapshot.counts["read"] > SMALL
        ]
    warm = (snapshots[-1].published_at - snapshots[0].published_at).total_seconds()
    speed = sum(snapshot.counts["read"] for snapshot in snapshots[1:]) / warm if len(snapshots) > 1 else float("nan")
    early = max(size for time, size in usage.memory if time <= snapshots[min(1, len(snapshots) - 1)].published_at)
    late = max(size for time, size in usage.memory if time > snapshots[max(0, len(snapshots) - 3)].published_at)
    cpu_s = {name: sum(seconds for kind, seconds in usage.cpu_s.values() if kind == name) for name in CPU}
    return Result(seconds, speed, cpu_s, early, late)


def _watch(pid: int, usage: Usage) -> None:
    while psutil.pid_exists(pid):
        with suppress(psutil.Error):
            usage.sample(pid)
        time.sleep(0.2)


def child(kind: str) -> None:
    """Run one pipeline in this process."""
    from sluice.engine.run.job_run import JobRun
    from sluice.engine.session import session
    from sluice.plan import plan

    known = settings()
    jars = ",".join(sorted(map(str, known.jars.glob("*.jar"))))
    conf = {"spark.master": "local[2]", "spark.jars": jars, "spark.driver.memory": "3g",
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}  # fmt: skip
    spark = session(replace(known, spark_conf=conf), kind)
    JobRun(spark, plan(KINDS[kind](f"bench_{kind}")).job, known, max_records=200_000).run()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in KINDS:
        child(sys.argv[1])
    else:
        typer.run(main)
