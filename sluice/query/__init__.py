"""Queries: one pinned snapshot, a key from its owner, everything else from all workers at once."""

from sluice.answers import WorkerStatus
from sluice.query.answers import Answer, Changes, Combined, Counted, Entry, Page, Pin
from sluice.query.combine import Group
from sluice.query.read_point import AsOf
from sluice.query.reader import Reader

__all__ = [
    "Answer",
    "AsOf",
    "Changes",
    "Combined",
    "Counted",
    "Entry",
    "Group",
    "Page",
    "Pin",
    "Reader",
    "WorkerStatus",
]  # fmt: skip
