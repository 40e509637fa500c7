"""Queries of stores: choose a snapshot, ask its workers, combine their results.

A look-up of a key asks only the worker that owns the key. Other queries ask all workers
concurrently. Each query is pinned to one snapshot, and reads only this snapshot.
"""

from sluice.answers import WorkerStatus
from sluice.query.as_of import AsOf
from sluice.query.reader import Reader
from sluice.query.results import Answer, Changes, Combined, Counted, Page, Pin
from sluice.state.queries.aggregates import Group
from sluice.state.queries.entries import Entry

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
