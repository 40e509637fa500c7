"""What tests of pipelines need: a driver that runs the engine without a broker, and a real broker."""

from sluice.testing.driver import Output, TopologyTestDriver

__all__ = ["Output", "TopologyTestDriver"]
