"""Brings the lines of a driver into Airflow's log at the levels that the driver gave them.

Airflow's hook logs every line of spark-submit as INFO, so a filter for warnings and errors would
show none of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from io import TextIOBase
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from sluice.errors import SluiceError
from sluice.spark_submit import is_noise

_LEVELS = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
}
_OF_SLUICE = re.compile(r"[-\d]{10} \S+ \[(\w+) *\] ")
"""The beginning of a line such as `2026-11-21 08:00:00 [warning  ] a snapshot could not be
copied`."""
_OF_SPARK = re.compile(r"[\d:]{8} ([A-Z]+) \S+: ")
"""The beginning of a line such as `08:00:00 WARN TaskSetManager: Lost task 0.0`. The format is in
`engine/log4j2.properties`."""
_PYTHON_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")
_TRACEBACK = "Traceback (most recent call last):"
_CONTINUED = (
    "Caused by: ",
    "During handling of the above exception",
    "The above exception was the direct cause",
)


def log_at_levels(hook: SparkSubmitHook) -> None:
    """Make a hook log each of its driver's lines at the line's own level."""
    process, log = hook._process_spark_submit_log, _LogAtLevel(hook.log)

    def process_at_levels(lines: Iterable[str]) -> None:
        process(log.lines(lines))
        # The lines come from the pipe with spark-submit's output. Airflow's hook does not close the
        # pipe.
        if isinstance(lines, TextIOBase):
            lines.close()

    # Airflow has no settings for the lines or their levels, so the hook's method and logger are
    # replaced.
    hook._process_spark_submit_log = process_at_levels  # type: ignore[assignment]
    hook._log = log


def log_lines(log: Any, lines: Iterable[str]) -> None:
    """Log a driver's lines, each at its own level."""
    for line, level in levels(lines):
        log.log(level, "%s", line.rstrip("\n"))


class _LogAtLevel:
    """The logger of a hook. The hook calls `info` with each line before it takes the next line."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._level = logging.INFO

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a driver without noise.

        Until the next line is taken, `info` logs at the level of the line that was yielded.
        """
        for line, level in levels(line for line in lines if not is_noise(line)):
            self._level = level
            yield line
        self._level = logging.INFO

    def info(self, message: str, *arguments: object) -> None:
        # A line of the driver may contain a per cent sign, so it must not be taken for a format.
        self._log.log(self._level, message % arguments if arguments else message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def levels(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each line with its level.

    The lines of a stack trace have the level of the line before them.
    """
    level, is_in_traceback = logging.INFO, False
    for line in lines:
        own_level = _own_level(line)
        if own_level is not None:
            level, is_in_traceback = own_level, line.startswith(_TRACEBACK)
        elif not line[:1].isspace() and not line.startswith(_CONTINUED):
            # After the line `_TRACEBACK`, the first line that is not indented is the exception. The
            # traceback ends with it.
            level = level if is_in_traceback else logging.INFO
            is_in_traceback = False
        yield line, level


def _own_level(line: str) -> int | None:
    """Return the level that a line states; None if it states no level."""
    stated = _OF_SLUICE.match(line) or _OF_SPARK.match(line)
    if stated is not None:
        return _LEVELS.get(stated[1].upper())
    if line.startswith((_TRACEBACK, *_OWN_ERRORS)):
        return logging.ERROR
    return logging.WARNING if _PYTHON_WARNING.match(line) else None


def _titles(error: type[SluiceError]) -> Iterator[str]:
    yield error.title
    for subclass in error.__subclasses__():
        yield from _titles(subclass)


_OWN_ERRORS = tuple(f"{title}: " for title in _titles(SluiceError))
"""The beginnings of lines that say why the driver has ended. Each is the title of an error."""
