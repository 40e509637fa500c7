"""Measures the runs of this driver: how long they take, and what they cost on its host.

`state/ledger/finished_runs.py` adds the costs up by day.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import SluiceError
from sluice.settings import Settings
from sluice.version import __version__

if TYPE_CHECKING:
    import psutil

    from sluice.state.ledger.finished_runs import Outcome


@contextmanager
def measured_run(configuration: Settings, pipeline: str) -> Iterator[Callable[[], None]]:
    """Add the run in the block to its pipeline's measurements, whether it succeeds or fails.

    Yields a function to call when Spark is ready. An unreachable ledger does not affect the run.
    """
    ready: list[float] = []
    outcome: Outcome = "failed"
    try:
        yield lambda: ready.append(time.time())
        outcome = "succeeded"
    finally:
        _add(configuration, pipeline, outcome, ready)


def _add(configuration: Settings, pipeline: str, outcome: Outcome, ready: list[float]) -> None:
    from sluice.state.ledger.finished_runs import FinishedRun, topology_hash
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.measurements import Measurement, duration
    from sluice.state.remote.opening import state_size

    processes = _processes()
    began = processes[0].create_time()
    ended = time.time()
    cpu_seconds = sum(map(_cpu_seconds, processes))
    memory_bytes = sum(map(_most_bytes, processes))
    totals = [Measurement("runs_total", 1, (("outcome", outcome),))]
    totals += duration("run_duration_seconds", ended - began)
    if ready:
        totals += duration("run_start_seconds", ready[0] - began)
    totals.append(Measurement("run_cpu_seconds_total", cpu_seconds))
    with suppress(SluiceError, OSError), Ledger.open(configuration.ledger) as ledger:
        info = ledger.generations.current(pipeline)
        run = FinishedRun(
            pipeline=pipeline,
            run=configuration.run,
            outcome=outcome,
            host=socket.gethostname(),
            version=__version__,
            began_at=datetime.fromtimestamp(began, UTC),
            ended_at=datetime.fromtimestamp(ended, UTC),
            topology=topology_hash(info) if info else "",
            cpu_seconds=cpu_seconds,
            memory_bytes=memory_bytes,
            state_bytes=state_size(info) if info else None,
        )
        ledger.finished_runs.add(run, totals)
        memory = Measurement("run_memory_bytes", memory_bytes)
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
    """Return the peak memory of a process in bytes; if there is no `/proc`, its present memory."""
    import psutil

    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1_024
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
