"""The ledger: which jobs there are, where their workers' shards are, and which cuts have been published."""

from __future__ import annotations

from typing import Self

from sqlalchemy import Engine

from sluice.state.audits import Audits
from sluice.state.cuts import Cuts
from sluice.state.damages import Damages
from sluice.state.database import create_tables, database_url, open_engine, speaking_to
from sluice.state.failures import Failures
from sluice.state.history import History
from sluice.state.jobs import Jobs
from sluice.state.leases import Leases
from sluice.state.notes import Notes
from sluice.state.sources import Sources
from sluice.state.tables import METADATA


class Ledger(Jobs, Cuts):
    """The small database that decides what readers see. Safe to share between threads and processes.

    Every method raises StateError when the database cannot be reached.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.leases = Leases(engine)
        self.audits = Audits(engine)
        self.sources = Sources(engine)
        self.damages = Damages(engine)
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
            cut = self.latest_cut(pipeline, job.job)
            for topic in job.topics:
                read.setdefault(topic, []).append(cut.positions.get(topic, {}) if cut else {})
        return {topic: _least(found) for topic, found in read.items()}


def _least(found: list[dict[str, int]]) -> dict[int, int]:
    read_by_all = set.intersection(*(set(positions) for positions in found))
    return {int(partition): min(positions[partition] for positions in found) for partition in sorted(read_by_all)}
