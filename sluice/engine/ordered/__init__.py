"""Operators that need each key's records in order: ingest, stages, and the runner of an operator."""
