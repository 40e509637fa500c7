"""A real broker for tests of pipelines: the one that the demo starts."""

from sluice.local.broker import EmbeddedKafka

__all__ = ["EmbeddedKafka"]
