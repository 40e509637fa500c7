"""Stateless steps: SQL expressions that may fail, Python functions, and how these reach Spark's tasks."""
