"""The ledger: which jobs there are, where their workers' shards are, and which snapshots have been published."""

from __future__ import annotations

from typing import Self

from sqlalchemy import Engine

from sluice.state.database import create_tables, database_url, open_engine, speaking_to
from sluice.state.ledger.audits import Audits
from sluice.state.ledger.failures import Failures
from sluice.state.ledger.history import History
from sluice.state.ledger.jobs import Jobs
from sluice.state.ledger.leases import Leases
from sluice.state.ledger.notes import Notes
from sluice.state.ledger.quarantine import Quarantine
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.ledger.sources import Sources
from sluice.state.ledger.tables import METADATA


class Ledger(Jobs, Snapshots):
    """The small database that decides what readers see. Safe to share between threads and processes.

    Every method raises StateError when the database cannot be reached.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.leases = Leases(engine)
        self.audits = Audits(engine)
        self.sources = Sources(engine)
        self.quarantine = Quarantine(engine)
        self.failures = Failures(engine)
        self.history = History(engine)
        self.notes = Notes(engine)

    @property
    def engine(self) -> Engine:
        """For what else is kept in the ledger's database."""
        return self._engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the ledger at a SQLAlchemy URL, creating the tables that are missing."""
        with speaking_to("Opening the ledger"):
            engine = open_engine(database_url(url))
            create_tables(engine, METADATA)
        return cls(engine)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def positions(self, pipeline: str) -> dict[str, dict[int, int]]:
        """How far the whole pipeline has read: topic → partition → the least next offset of the jobs that read it.

        A partition is left out as long as one of these jobs has not read it.
        """
        read: dict[str, list[dict[str, int]]] = {}
        for job in self.jobs(pipeline):
            snapshot = self.latest_snapshot(pipeline, job.job)
            for topic in job.topics:
                read.setdefault(topic, []).append(snapshot.positions.get(topic, {}) if snapshot else {})
        return {topic: _least(found) for topic, found in read.items()}


def _least(found: list[dict[str, int]]) -> dict[int, int]:
    read_by_all = set.intersection(*(set(positions) for positions in found))
    return {int(partition): min(positions[partition] for positions in found) for partition in sorted(read_by_all)}
