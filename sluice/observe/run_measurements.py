"""Measures the runs of this driver: how long they take, and what they cost on its host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import SluiceError
from sluice.settings import Settings

if TYPE_CHECKING:
    import psutil


@contextmanager
def measured_run(configuration: Settings, pipeline: str) -> Iterator[Callable[[], None]]:
    """Add the run in the block to its pipeline's measurements, whether it succeeds or fails.

    Yields a function to call when Spark is ready. An unreachable ledger does not affect the run.
    """
    ready: list[float] = []
    outcome = "failed"
    try:
        yield lambda: ready.append(time.time())
        outcome = "succeeded"
    finally:
        _add(configuration, pipeline, outcome, ready)


def _add(configuration: Settings, pipeline: str, outcome: str, ready: list[float]) -> None:
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.measurements import Measurement, duration

    processes = _processes()
    begun = processes[0].create_time()
    totals = [Measurement("runs_total", 1, (("outcome", outcome),))]
    totals += duration("run_duration_seconds", time.time() - begun)
    if ready:
        totals += duration("run_start_seconds", ready[0] - begun)
    totals.append(Measurement("run_cpu_seconds_total", sum(map(_cpu_seconds, processes))))
    memory = Measurement("run_memory_bytes", sum(map(_most_bytes, processes)))
    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        ledger.measurements.add(pipeline, totals)
        ledger.measurements.replace(pipeline, [memory])


def _processes() -> list[psutil.Process]:
    """Return Spark's JVM, this process, and all processes that they have started."""
    import psutil

    own = psutil.Process()
    with suppress(psutil.Error):
        # If spark-submit has started this process, the JVM is its parent. Otherwise this process
        # has started the JVM.
        parent = own.parent()
        root = parent if parent is not None and parent.name() == "java" else own
        return [root, *root.children(recursive=True)]
    # spark-submit was killed, and this driver ends, too.
    return [own]


def _cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its children that have ended."""
    import psutil

    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _most_bytes(process: psutil.Process) -> int:
    """Return the peak memory of a process, in bytes; without `/proc`, its present memory."""
    import psutil

    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1_024
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
