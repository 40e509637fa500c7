"""Distributes tests over pytest-xdist's processes: tests with shared fixtures stay together, long ones start first."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/api/", "tests/browser/")
"""Folders whose tests run in one process, because they share an Airflow. Elsewhere, each file has one process."""

FIRST = (
    "tests/integration/test_end_to_end.py",
    "tests/faults/",
    "tests/docs/",
    "tests/engine/",
    "tests/integration/",
    "tests/dags/",
    "tests/conformance/",
    "tests/browser/",
    "tests/pipelines/",
    "tests/servers/",
    "tests/api/",
)
"""The longest tests first, so that no process waits for another in the end."""


class Dealer(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns files, or folders of `TOGETHER`, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def rank(item: pytest.Item) -> int:
    """The position of a test in the order of all tests."""
    return next((number for number, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))
