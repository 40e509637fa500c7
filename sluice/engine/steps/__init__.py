"""Stateless steps: SQL expressions that may fail, and Python functions, which are pickled for Spark's tasks."""
