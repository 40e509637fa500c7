"""Stateless steps: SQL expressions that may fail, and Python functions, pickled for tasks."""
