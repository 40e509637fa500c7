"""A real Kafka broker for tests of pipelines: the demo's broker."""

from sluice.local.broker import EmbeddedKafka

__all__ = ["EmbeddedKafka"]
