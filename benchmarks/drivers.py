"""Times the steps of a pipeline's unit test: `drivers.py [--runs N] [--peer]`.

The first result of a new process includes the import of Sluice and of everything that it needs. A
further driver processes one record and reads a store. Seconds are medians; CPU seconds depend less
on what else the machine does. With `--peer`, Kafka Streams' TopologyTestDriver does the same in
`TestDriverTimes.java`, which needs a JDK.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from sluice.provision.ivy import Module, fetch
from sluice.provision.machine_checks import find_java

PEER = Path(__file__).with_name("TestDriverTimes.java")
PEER_JARS = (
    Module("org.apache.kafka", "kafka-streams-test-utils", "4.4.0"),
    Module("org.slf4j", "slf4j-nop", "1.7.36"),
)
RECORDS = 1_000


class Sale(Struct):
    """A record of the benchmark."""

    shop: str
    amount: int


def first_result() -> None:
    """Sum a shop's amounts with a Python function, in a new driver, and read the sum."""
    from sluice import Pipeline
    from sluice.testing import TopologyTestDriver

    def add(total: int, sale: Sale) -> int:
        return total + sale.amount

    pipeline = Pipeline("sums", workers=2)
    sums = (
        pipeline.stream("sales", value=Sale)
        .group_by("shop")
        .aggregate(int, add, store="sums", returns=int)
    )
    sums.to_stream().filter("value > 3").to("large")
    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("sales", Sale("a", 4))
        assert driver.store("sums") == {"a": 4}


def many_records() -> None:
    """Count a thousand records of fifty keys."""
    from sluice import Pipeline
    from sluice.testing import TopologyTestDriver

    pipeline = Pipeline("counts", workers=2)
    pipeline.stream("sales", value=Sale).group_by("shop").count(store="counts")
    with TopologyTestDriver(pipeline) as driver:
        for number in range(RECORDS):
            driver.pipe("sales", Sale(f"shop {number % 50}", number))
        assert driver.store("counts")["shop 49"] == RECORDS / 50


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of this process that some work takes."""
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def in_new_process() -> tuple[float, float]:
    """Return the seconds that a new process takes until its first result, and its CPU seconds."""
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cpu = json.loads(done.stdout.splitlines()[-1])
    return time.perf_counter() - begin, cpu


def seconds_of_peer(runs: int) -> list[list[float]]:
    """Return the seconds of `runs` measurements of each kind with Kafka Streams' test driver."""
    java = find_java().path
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        jars = fetch(java, PEER_JARS, Path(folder, "ivy"), transitive=True).values()
        class_path = ":".join([folder, *map(str, jars)])
        subprocess.run([java.with_name("javac"), "-cp", class_path, "-d", folder, PEER], check=True)
        command = [str(java), "-cp", class_path, PEER.stem]
        first = []
        for _ in range(runs):
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            first.append(time.perf_counter() - begin)
        done = subprocess.run([*command, str(runs)], check=True, capture_output=True, text=True)
    further = [float(seconds) for seconds in done.stdout.split()]
    return [first, further[:runs], further[runs:]]


def main(
    runs: Annotated[int, typer.Option(help="how often to time each")] = 7,
    peer: Annotated[bool, typer.Option(help="also time Kafka Streams' TopologyTestDriver")] = False,
    child: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Time the test driver."""
    if child:
        first_result()
        print(time.process_time())
        return
    first_result()
    table = Table("", "seconds", "CPU s")
    peers: list[list[float]] = [[], [], []]
    if peer:
        peers = seconds_of_peer(runs)
        table.add_column("Kafka Streams s")
        table.add_column("ratio")
    measures: list[tuple[str, Callable[[], tuple[float, float]]]] = [
        ("first result of a new process", in_new_process),
        ("further driver with one record", lambda: timed(first_result)),
        (f"{RECORDS:,} records", lambda: timed(many_records)),
    ]
    for (name, measure), of_peer in zip(measures, peers, strict=True):
        seconds, cpu = zip(*[measure() for _ in range(runs)], strict=True)
        median = statistics.median(seconds)
        row = [name, f"{median:.3f}", f"{statistics.median(cpu):.3f}"]
        if of_peer:
            median_of_peer = statistics.median(of_peer)
            row += [f"{median_of_peer:.3f}", f"{median / median_of_peer:.2f}"]
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    typer.run(main)
