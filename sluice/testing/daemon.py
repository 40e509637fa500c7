"""Spark's Python daemon in tests: forks the processes, which import test modules."""

import gc
from contextlib import suppress

from sluice.engine.worker_daemon import fork_workers
from sluice.support.startup import importing

with importing():
    import sluice.engine.task_modules

    # The modules of tests import TopologyTestDriver and pytest. The daemon imports both, so that
    # the processes that it forks need not import them again.
    import sluice.testing.topology_test_driver  # noqa: F401

    with suppress(ImportError):
        import pytest  # noqa: F401


def freeze(phase: str, info: dict[str, int]) -> None:
    """After a full garbage collection, exclude the remaining objects from later collections."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


if __name__ == "__main__":
    gc.callbacks.append(freeze)
    fork_workers()
