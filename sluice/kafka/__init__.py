"""Clients of Kafka: they check brokers, read and write topics, and look up offsets."""
