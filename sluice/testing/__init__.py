"""Tools for testing pipelines without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.testing.topology_test_driver import Output, TopologyTestDriver

__all__ = ["Output", "TopologyTestDriver"]


def __getattr__(name: str) -> Any:
    # TopologyTestDriver is imported on demand, because it imports the engine.
    if name in __all__:
        from sluice.testing import topology_test_driver

        return getattr(topology_test_driver, name)
    raise AttributeError(name)
