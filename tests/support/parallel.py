"""Distributes tests over pytest-xdist's processes: tests with shared fixtures stay together, long ones start first."""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from typing import Literal

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ON_SPARK = "@spark"
"""The end of the names of files whose tests start a Spark in their process."""

TOGETHER = ("tests/api/", "tests/browser/")
"""Tests that run in one process, because they share an Airflow. Otherwise, a file has a process."""

WAITING = (
    "tests/integration/test_end_to_end.py",
    "tests/integration/test_trigger.py",
    "tests/docs/test_tutorial.py",
    "tests/faults/test_samples.py",
    "tests/servers/test_prometheus.py",
    "tests/integration/test_kafka.py",
    "tests/integration/test_redrive.py",
    "tests/faults/test_replays.py",
    "tests/faults/test_run_samples.py",
    "tests/servers/test_half_sent.py",
    "tests/servers/test_untrusted_peers.py",
    "tests/unit/kafka/test_unreachable_brokers.py",
    "tests/unit/state/test_lease.py",
    "tests/engine/test_oauth.py",
    "tests/engine/test_kafka_security.py",
    "tests/engine/test_renewed_certificates.py",
    "tests/unit/kafka/test_tokens.py",
    "tests/engine/test_output_identity.py",
    "tests/engine/test_denied_operations.py",
    "tests/unit/state/test_postgres_checks.py",
    "tests/unit/warm/test_fork_server.py",
    "tests/unit/warm/test_client.py",
)
"""Files whose tests mostly wait: for brokers, Airflow, leases and time-outs."""

WAITING_PROCESSES = (1, 2)
"""The numbers of the processes that begin with these files. If all processes did, the cores would
be idle meanwhile."""

LATE_S = 15.0
"""If a process ends so many seconds after the first, it has got a long file too late."""

FIRST = (
    *WAITING,
    "tests/cluster/",
    "tests/faults/test_drivers.py",
    "tests/engine/test_delta",
    "tests/chaos/",
    "tests/browser/",
    "tests/integration/",
    "tests/engine/test_renaming.py",
    "tests/engine/test_shared_stores.py",
    "tests/unit/topology/test_odd_expressions.py",
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

    The tests of a file that need Spark are a file of their own. The first process begins with these
    files. The other processes run only other files, so that there is one Spark: it takes as long to
    start as hundreds of tests. Two processes begin with the files of `WAITING`, while the others
    compute.
    """

    def __init__(self, config: pytest.Config, log: object, on_spark: Path) -> None:
        """`on_spark`: the file to which the processes have written the ids of the tests that need Spark."""
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._nodes: list[WorkerController] = []
        self._file = on_spark
        self._ends: dict[WorkerController, tuple[float, str]] = {}

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
        # A process runs a test as soon as it knows the next one, so it needs no more than one in
        # advance. pytest-xdist would give it a whole file more, for which no other process could
        # then begin.
        elif self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        nodeid = self.registered_collections[node][item_index]
        self._ends[node] = time.monotonic(), self._split_scope(nodeid)
        super().mark_test_complete(node, item_index, duration)

    def late_files(self) -> list[str]:
        """A line for each process that was still busy when others had nothing left to do, with its last file."""
        first = min((end for end, _ in self._ends.values()), default=0.0)
        return [
            f"{node.gateway.id} ended {end - first:.0f} s after the first process, with {scope}. "
            "If this file takes long, put it further ahead in FIRST in tests/support/parallel.py."
            for node, (end, scope) in self._ends.items()
            if end - first > LATE_S
        ]

    def _next(self, node: WorkerController) -> str | None:
        number = self._nodes.index(node)
        kinds = (
            ["waiting", "computing"] if number in WAITING_PROCESSES else ["computing", "waiting"]
        )
        if number == 0:
            kinds.insert(0, "spark")
        first = {kind_of(scope): scope for scope in reversed(self.workqueue)}
        return next((first[kind] for kind in kinds if kind in first), None)

    def _split_scope(self, nodeid: str) -> str:
        scope = next(
            (folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0]
        )
        return scope + (ON_SPARK if nodeid in self._on_spark else "")


def kind_of(scope: str) -> Literal["spark", "waiting", "computing"]:
    """What the tests of a file, or of a folder of `TOGETHER`, mostly do."""
    if scope.endswith(ON_SPARK):
        return "spark"
    return "waiting" if scope in WAITING else "computing"


def needs_spark(item: pytest.Item) -> bool:
    """Whether a test starts a Spark in its process."""
    return (
        "spark" in getattr(item, "fixturenames", ()) or item.get_closest_marker("spark") is not None
    )


def rank(item: pytest.Item) -> int:
    """The position of a test in the order of all tests."""
    return next(
        (number for number, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST)
    )
