"""Kafka and Airflow as local processes, for the demo and for tests."""
