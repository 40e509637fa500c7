"""Clients of Kafka, which check brokers, read and write topics, and look up offsets."""
