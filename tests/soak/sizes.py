"""How many threads, files and bytes processes and folders have, and how much they grow."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_MB = 1_000_000
_ENDS = 3
"""How many samples at each end of a series count, by their median, because a single sample may be an exception."""


class Size(NamedTuple):
    """The sizes of one or more processes."""

    threads: int
    files: int
    mb: float
    """Memory that only these processes use, in MB: not what forked processes share."""


def size_of(processes: Iterable[psutil.Process]) -> Size:
    """The summed sizes of processes. Those that end meanwhile are left out."""
    threads, files, memory = 0, 0, 0
    for process in processes:
        with suppress(psutil.Error):
            own = process.num_threads(), process.num_fds(), process.memory_full_info().uss
            threads, files, memory = threads + own[0], files + own[1], memory + own[2]
    return Size(threads, files, memory / _MB)


def own_size() -> Size:
    """The size of this process, without the files that garbage still holds."""
    gc.collect()
    return size_of([psutil.Process()])


def is_flat(before: Size, after: Size, more: int = 5) -> bool:
    """Whether neither threads nor files have grown by more than `more`."""
    return after.threads <= before.threads + more and after.files <= before.files + more


def assert_flat(before: Size, after: Size, more: int = 5) -> None:
    """Neither threads nor files have grown by more than `more`."""
    assert after.threads <= before.threads + more, (
        f"{before.threads} threads have become {after.threads}"
    )
    assert after.files <= before.files + more, f"{before.files} files have become {after.files}"


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """The CPU time that processes have used."""
    seconds = 0.0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def mb_in(*places: Path) -> float:
    """The size of files and folders, in MB."""
    total = 0
    for place in places:
        for file in (place, *place.rglob("*")):
            with suppress(FileNotFoundError):
                if file.is_file():
                    total += file.stat().st_size
    return total / _MB


def growth(values: Sequence[float]) -> float:
    """The difference between the last and the first values of a series."""
    ends = max(min(_ENDS, len(values) // 2), 1)
    return statistics.median(values[-ends:]) - statistics.median(values[:ends])
