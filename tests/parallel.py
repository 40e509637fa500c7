"""How tests are dealt out to pytest-xdist's workers: what shares something slow stays together, long ones go first."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/api/", "tests/browser/")
"""Folders that share an Airflow. Elsewhere it is files that stay together; each worker has a Spark and a broker."""

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
"""The longest first, so that in the end no worker waits for another one's."""


class Dealer(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out files, or folders of `TOGETHER`, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def rank(item: pytest.Item) -> int:
    """Where a test stands in the order of the whole."""
    return next((number for number, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST))
