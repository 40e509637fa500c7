"""A driver's warnings and errors have their own level in Airflow's log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import structlog
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from sluice.errors import BrokersUnreachable
from sluice.orchestration.driver_log import levels, log_at_levels

LINES = {
    "WARNING: Using incubator modules: jdk.incubator.vector": None,
    "orders reads 1 topic, 100 % of it": logging.INFO,
    "    general: filter": logging.INFO,
    "2026-11-21 08:00:00 [info     ] batch published                snapshot=1.42": logging.INFO,
    "2026-11-21 08:00:00 [warning  ] standby not refreshed          worker=1": logging.WARNING,
    "08:00:01 WARN TaskSetManager: Lost task 0.0 in stage 3.0": logging.WARNING,
    "08:00:02 ERROR Executor: Exception in task 0.0": logging.ERROR,
    "java.lang.IllegalStateException: no": logging.INFO,
    "/home/me/orders.py:12: DeprecationWarning: use_that": logging.WARNING,
    "Traceback (most recent call last):": logging.ERROR,
    '  File "driver.py", line 3, in main': logging.ERROR,
    "    run()": logging.ERROR,
    "ValueError: no": logging.ERROR,
    "the plan again": logging.INFO,
    f"{BrokersUnreachable.title}: No broker answers at kafka:9092.": logging.ERROR,
}
"""A line of a driver → its level; None if it is left out."""


def test_each_line_has_the_level_that_the_driver_gave_it() -> None:
    shown = {line: level for line, level in LINES.items() if level is not None}
    assert dict(levels(shown)) == shown


def test_a_stack_trace_belongs_to_the_line_before_it() -> None:
    trace = [
        "08:00:02 ERROR Executor: failed",
        "\tat org.spark.Task.run",
        "Caused by: it",
        "\t... 9 more",
        "done",
    ]
    assert [level for _, level in levels(trace)] == [*[logging.ERROR] * 4, logging.INFO]


def test_airflows_hook_logs_each_line_at_its_level_and_keeps_its_tail() -> None:
    def output() -> Iterator[str]:
        yield from (f"{line}\n" for line in LINES)

    hook = SparkSubmitHook.__new__(SparkSubmitHook)
    with structlog.testing.capture_logs() as logged:
        SparkSubmitHook.__init__(hook, conn_id="spark_default")
        logged.clear()
        log_at_levels(hook)
        hook._process_spark_submit_log(output())
    names = [
        (entry["event"], logging.getLevelNamesMapping()[entry["log_level"].upper()])
        for entry in logged
    ]
    assert names == [(line.strip(), level) for line, level in LINES.items() if level is not None]
    assert "No broker answers" in hook._submit_log_tail


def test_the_pipe_of_a_drivers_output_is_closed_at_its_end() -> None:
    hook = SparkSubmitHook(conn_id="spark_default")
    log_at_levels(hook)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading) as output:
        hook._process_spark_submit_log(iter(output))
        assert output.closed
