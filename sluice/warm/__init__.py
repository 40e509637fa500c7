"""Warm drivers: one JVM and Spark for the runs of many pipelines, each in a separate process."""
