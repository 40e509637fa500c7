"""Queries: one pinned cut, a key from its owner, everything else from all workers at once."""

from sluice.query.answers import Answer, Entry, Page, Pin, WorkerStatus
from sluice.query.reader import Reader

__all__ = ["Answer", "Entry", "Page", "Pin", "Reader", "WorkerStatus"]
