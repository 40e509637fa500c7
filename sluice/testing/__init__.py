"""Tools for testing pipelines without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.support.pandas_on_demand import import_pandas_on_demand
from sluice.support.startup import importing

if TYPE_CHECKING:
    from sluice.testing.topology_test_driver import Output, TopologyTestDriver

__all__ = ["Output", "TopologyTestDriver"]


def __getattr__(name: str) -> Any:
    # TopologyTestDriver is imported on demand, because it imports the engine.
    if name in __all__:
        with importing():
            import_pandas_on_demand()
            from sluice.testing import topology_test_driver

        for exported in __all__:
            globals()[exported] = getattr(topology_test_driver, exported)
        return globals()[name]
    raise AttributeError(name)
