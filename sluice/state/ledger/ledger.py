"""The ledger, a small database that determines what readers see."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from sqlalchemy import Engine, select, text

from sluice.state.database import database_errors, database_url, open_engine
from sluice.state.ledger.activities import Activities
from sluice.state.ledger.audits import Audits
from sluice.state.ledger.failures import Failures
from sluice.state.ledger.finished_runs import FinishedRuns
from sluice.state.ledger.generations import Generations
from sluice.state.ledger.history import History
from sluice.state.ledger.leases import Leases
from sluice.state.ledger.measurements import Measurements
from sluice.state.ledger.migrations import migrate
from sluice.state.ledger.notes import Notes
from sluice.state.ledger.pauses import Pauses
from sluice.state.ledger.placement import Placements
from sluice.state.ledger.plans import Plans
from sluice.state.ledger.quarantine import Quarantine
from sluice.state.ledger.renames import Renames
from sluice.state.ledger.secrets import Secrets
from sluice.state.ledger.servers import Servers
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.ledger.sources import Sources
from sluice.state.ledger.standbys import Standbys
from sluice.state.ledger.state_sizes import Sizes
from sluice.state.model import Snapshot
from sluice.state.postgres_checks import require_usable


class Ledger:
    """A ledger, divided into parts. Safe to share between threads and processes.

    Every method raises StateError if the database cannot be reached.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.generations = Generations(engine)
        self.snapshots = Snapshots(engine)
        self.leases = Leases(engine)
        self.audits = Audits(engine)
        self.history = History(engine)
        self.plans = Plans(engine)
        self.sources = Sources(engine)
        self.quarantine = Quarantine(engine)
        self.placements = Placements(engine)
        self.standbys = Standbys(engine)
        self.servers = Servers(engine)
        self.failures = Failures(engine)
        self.notes = Notes(engine)
        self.finished_runs = FinishedRuns(engine)
        self.pauses = Pauses(engine)
        self.activities = Activities(engine)
        self.renames = Renames(engine)
        self.measurements = Measurements(engine)
        self.sizes = Sizes(engine)
        self.secrets = Secrets(engine)

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the ledger at a SQLAlchemy URL and create or migrate its tables."""
        with database_errors("Opening the ledger", seconds=None):
            engine = open_engine(database_url(url))
            try:
                migrate(engine)
            except BaseException:
                # A process that tries again and again must not keep a connection of each attempt.
                engine.dispose()
                raise
        return cls(engine)

    def close(self) -> None:
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_clock(self) -> bool:
        """Return whether the database has its own clock. A SQLite file has none."""
        return self.engine.dialect.name != "sqlite"

    def require_usable(self) -> None:
        """Raise SettingsError or StateError if the ledger's address cannot be used for writing."""
        require_usable(self.engine.url, "ledger", "SLUICE_LEDGER")

    def clock_ahead_seconds(self) -> float:
        """Return how far this machine's clock is ahead of the database's clock.

        Return 0 for a SQLite file, which has no clock.
        """
        if not self.has_clock:
            return 0.0
        with database_errors("Reading the database's clock"), self.engine.connect() as connection:
            # The first statement opens the connection. That takes long, so it must not be part of
            # the measurement.
            connection.execute(select(1))
            begun = time.time()
            theirs = connection.execute(
                text("SELECT extract(epoch FROM clock_timestamp())")
            ).scalar_one()
            return (begun + time.time()) / 2 - float(theirs)

    def positions(self, pipeline: str) -> dict[str, dict[int, int]]:
        """Return topic → partition → the pipeline's next offset.

        Omit partitions that the pipeline has not read yet.
        """
        current = self.generations.current(pipeline)
        if current is None:
            return {}
        snapshot = self.snapshots.latest(pipeline)
        return positions_in(current.topics, snapshot)


def positions_in(topics: Sequence[str], snapshot: Snapshot | None) -> dict[str, dict[int, int]]:
    """Return topic → partition → the next offset after a snapshot, for all `topics`."""
    read = {} if snapshot is None else snapshot.positions
    positions: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for topic in topics:
        for partition, offset in read.get(topic, {}).items():
            positions[topic][int(partition)] = offset
    return positions
