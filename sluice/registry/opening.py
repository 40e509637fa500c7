"""Opens the registry that the settings name."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.registry.http_registry import HttpRegistry
from sluice.registry.memory import MemoryRegistry
from sluice.registry.registry import Registry

MEMORY = "memory:"
_IN_MEMORY: dict[str, MemoryRegistry] = {}
"""URL → the registry of a test in this process."""


def registry_of(settings: Mapping[str, str]) -> Registry:
    """Return the registry with these settings. It gets no request until a schema is needed."""
    url = settings.get("url", "")
    if url.startswith(MEMORY):
        return _IN_MEMORY.setdefault(url, MemoryRegistry())
    return HttpRegistry(dict(settings))


def memory_registry(url: str) -> MemoryRegistry:
    """Return the registry of a test. The first call creates the registry."""
    return _IN_MEMORY.setdefault(url, MemoryRegistry())


def forget(url: str) -> None:
    """Remove the registry of a test that has ended."""
    _IN_MEMORY.pop(url, None)
