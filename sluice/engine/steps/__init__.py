"""Stateless steps: SQL expressions that may fail, Python functions, and their pickling for Spark's tasks."""
