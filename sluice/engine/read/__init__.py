"""Reads topics: turns records into typed columns, or into dead letters if decoding fails."""
