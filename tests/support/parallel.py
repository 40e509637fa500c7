"""Distributes tests over pytest-xdist's processes: tests with shared fixtures stay together, long ones start first."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ON_SPARK = "@spark"
"""The end of the names of files whose tests start a Spark in their process."""

TOGETHER = ("tests/api/", "tests/browser/")
"""Tests that run in one process, because they share an Airflow. Otherwise, a file has a process."""

WAITING = (
    "tests/unit/kafka/test_unreachable_brokers.py",
    "tests/unit/state/test_lease.py",
    "tests/integration/test_trigger.py",
    "tests/faults/test_samples.py",
    "tests/servers/test_client.py",
    "tests/servers/test_half_sent.py",
    "tests/servers/test_standbys.py",
    "tests/servers/test_untrusted_peers.py",
)
"""Tests that mostly wait. A process runs them while the others compute; later, a core would be idle meanwhile."""

FIRST = (
    "tests/integration/test_end_to_end.py",
    *WAITING,
    "tests/cluster/",
    "tests/docs/test_tutorial.py",
    "tests/faults/test_drivers.py",
    "tests/engine/test_delta",
    "tests/chaos/",
    "tests/browser/",
    "tests/integration/",
    "tests/dags/",
    "tests/docs/",
    "tests/faults/",
    "tests/engine/",
    "tests/conformance/",
    "tests/pipelines/",
    "tests/servers/",
    "tests/api/",
)
"""The longest tests first, so that no process waits for another in the end."""


class Dealer(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns files, or folders of `TOGETHER`, in the order in which they were collected.

    The tests of a file that need Spark are a file of their own. The first process begins with these files. The other
    processes run only other files, so that there is one Spark: it takes as long to start as hundreds of tests.
    """

    def __init__(self, config: pytest.Config, log: object, on_spark: Path) -> None:
        """`on_spark`: the file to which the processes have written the ids of the tests that need Spark."""
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._nodes: list[WorkerController] = []
        self._file = on_spark

    @cached_property
    def _on_spark(self) -> frozenset[str]:
        return frozenset(self._file.read_text().split("\n"))

    def add_node(self, node: WorkerController) -> None:
        self._nodes.append(node)
        super().add_node(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if (scope := self._next(node)) is not None:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.shutting_down:
            return
        if self._next(node) is None:
            node.shutdown()
        # A process runs a test as soon as it knows the next one, so it needs no more than one in advance. pytest-xdist
        # would give it a whole file more, for which no other process could then begin.
        elif self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _next(self, node: WorkerController) -> str | None:
        has_spark = self._nodes.index(node) == 0
        preferred = (scope for scope in self.workqueue if scope.endswith(ON_SPARK) == has_spark)
        return next(preferred, next(iter(self.workqueue), None) if has_spark else None)

    def _split_scope(self, nodeid: str) -> str:
        scope = next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])
        return scope + (ON_SPARK if nodeid in self._on_spark else "")


def needs_spark(item: pytest.Item) -> bool:
    """Whether a test starts a Spark in its process."""
    return "spark" in getattr(item, "fixturenames", ()) or item.get_closest_marker("spark") is not None


def rank(item: pytest.Item) -> int:
    """The position of a test in the order of all tests."""
    return next((number for number, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))
