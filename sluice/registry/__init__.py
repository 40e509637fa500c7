"""Clients of schema registries: over HTTP, and in memory for tests."""
