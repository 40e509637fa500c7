"""Runs operators that need each key's records in order: ingest, stages, and the runner of one operator."""
