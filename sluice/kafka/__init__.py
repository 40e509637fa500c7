"""Clients of Kafka, which ask whether a broker answers, read and write topics, and look up offsets."""
