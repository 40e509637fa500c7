"""Times what a unit test of a pipeline waits for: `drivers.py [--runs N]`.

The first result of a new process includes the import of Sluice and of everything that it needs. A further driver
processes one record and reads a store. Seconds are medians; CPU seconds depend less on what else the machine does.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

RECORDS = 1_000


class Sale(Struct):
    """A record of the benchmark."""

    shop: str
    amount: int


def first_result() -> None:
    """Sum the amounts of a shop by a function, in a new driver, and read the sum."""
    from sluice import Pipeline
    from sluice.testing import TopologyTestDriver

    def add(total: int, sale: Sale) -> int:
        return total + sale.amount

    pipeline = Pipeline("sums", workers=2)
    sums = pipeline.stream("sales", value=Sale).group_by("shop").aggregate(int, add, store="sums", returns=int)
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
        assert len(driver.store("counts")) == 50


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """The seconds and the CPU seconds of this process that something takes."""
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def in_new_process() -> tuple[float, float]:
    """The seconds of a new process until it has its first result, and its CPU seconds."""
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--child"]
    cpu = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    return time.perf_counter() - begin, cpu


def main(
    runs: Annotated[int, typer.Option(help="how often to time each")] = 7,
    child: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Time the test driver."""
    if child:
        first_result()
        print(time.process_time())
        return
    first_result()
    table = Table("", "seconds", "CPU s")
    for name, measure in (
        ("first result of a new process", in_new_process),
        ("further driver with one record", lambda: timed(first_result)),
        (f"{RECORDS:,} records", lambda: timed(many_records)),
    ):
        seconds, cpu = zip(*(measure() for _ in range(runs)), strict=True)
        table.add_row(name, f"{statistics.median(seconds):.3f}", f"{statistics.median(cpu):.3f}")
    Console().print(table)


if __name__ == "__main__":
    import logging

    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    typer.run(main)
