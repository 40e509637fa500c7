"""Clients of Kafka: whether a broker answers, topics and their records, and the offsets of topics."""
