"""Tools for testing pipelines: a driver that runs the engine without a broker, and a real broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluice.testing.driver import Output, TopologyTestDriver

__all__ = ["Output", "TopologyTestDriver"]


def __getattr__(name: str) -> Any:
    # The driver is imported on demand, because it needs Spark and the broker does not.
    if name in __all__:
        from sluice.testing import driver

        return getattr(driver, name)
    raise AttributeError(name)
