"""Reads topics: turns records into typed columns, or into dead letters if they cannot be decoded."""
