"""An installation without Spark and records: a ledger and shards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.engine.run.driver_lease import Lease, this_process
from sluice.settings import Settings
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationRef
from sluice.state.remote.opening import open_shard
from sluice.state.shard.operator_states import State
from sluice.values.key_owners import owner
from tests.support.leases import NEWEST_EPOCH
from tests.support.state_rows import write_rows
from tests.support.states import States, make_audit, make_snapshot

KEYS = [f"key {number}" for number in range(40)]
OPERATOR = 3
TABLE = 9
"""The group of a global table."""


def settings_of(home: Path, database: str = "", bootstrap: str = "") -> Settings:
    """The settings of an installation with its state in `database`, by default in SQLite files."""
    at = {"SLUICE_LEDGER": database, "SLUICE_SHARDS": database} if database else {}
    if bootstrap:
        at["SLUICE_KAFKA"] = json.dumps({"bootstrap.servers": bootstrap})
    return Settings.read({"SLUICE_HOME": str(home), **at})


@dataclass
class Installation:
    """A pipeline `orders`.

    Each published batch sets the value and the operator state of every key to its number.
    """

    settings: Settings
    workers: int = 2

    def __post_init__(self) -> None:
        self.states = States(
            self.settings.shards, workers=self.workers, ledger_at=self.settings.ledger
        )
        self.ledger = self.states.ledger
        self.states.stores = (
            *self.states.stores,
            self.states.store("products", "global", group_id=TABLE),
        )
        self.ledger.generations.register(self.states.info())
        self.publish()

    @property
    def ref(self) -> GenerationRef:
        return self.states.ref

    def publish(self) -> None:
        """Publish the next batch."""
        self.states.batch += 1
        batch = self.states.batch
        checksums = {}
        with Lease(self.ledger.leases, self.ref, this_process("")) as lease:
            for worker, place in enumerate(self.states.written_at):
                own = [key for key in KEYS if owner(key, self.workers) == worker]
                with open_shard(place, to_write=True) as shard:
                    rows = [(0, key, -1, -1, f"[{batch},null]") for key in own]
                    write_rows(
                        shard, batch, [*rows, (TABLE, "product", -1, -1, f"[{batch}]")], lease.epoch
                    )
                    before = shard.read_states(OPERATOR, own, batch, lease.epoch)
                    new = [
                        State(
                            OPERATOR,
                            key,
                            b"%d" % batch,
                            replaces=before[key].version if key in before else None,
                        )
                        for key in own
                    ]
                    shard.write_states(batch, [OPERATOR], new, lease.epoch)
                    checksums[str(worker)] = shard.checksums(batch)
            source = SourceAudit(
                topic="orders", partition=0, start=batch, end=batch + 1, read=1, applied=1
            )
            audit = msgspec.structs.replace(
                make_audit(batch, lease.epoch, source),
                generation=self.ref.generation,
                checksums={worker: each.state_rows for worker, each in checksums.items()},
                states={worker: each.states for worker, each in checksums.items()},
            )
            snapshot = make_snapshot(
                batch, generation=self.ref.generation, positions={"orders": {"0": batch + 1}}
            )
            history = Batch(
                number=batch,
                begun=batch,
                partitions={"orders": 1},
                ends={"orders": {"0": batch + 1}},
            )
            assert self.ledger.snapshots.publish(
                snapshot, audit, {"count/orders/0": batch}, history
            )

    def begin(self) -> None:
        """Plan the next batch, as a driver does that is then killed."""
        with Lease(self.ledger.leases, self.ref, this_process("")) as lease:
            self.ledger.plans.add(
                self.ref, PlannedBatch(number=self.states.batch + 1, begun=1), lease.epoch
            )


def content(ledger: Ledger) -> dict[int, set[tuple[str, str | None]]]:
    """Batch → the pairs of key and value in all shards, for all kept snapshots.

    Checks every row, state and place.
    """
    values: dict[int, set[tuple[str, str | None]]] = {}
    current = ledger.generations.current("orders")
    assert current is not None
    for snapshot in ledger.snapshots.recent("orders"):
        found = values.setdefault(snapshot.batch, set())
        for worker in current.workers:
            with open_shard(worker.location) as shard:
                shard.verify_rows(snapshot.batch)
                rows = [(row.key, row.value) for row in shard.scan(0, snapshot.batch, checked=True)]
                assert {owner(key, len(current.workers)) for key, _ in rows} <= {worker.number}
                assert [row.value for row in shard.scan(TABLE, snapshot.batch)] == [
                    f"[{snapshot.batch}]"
                ]
                found.update(rows)
    assert snapshot_states(ledger) == dict.fromkeys(KEYS, b"%d" % max(values))
    return values


def snapshot_states(ledger: Ledger) -> dict[str, bytes]:
    """The operator states of all keys after the newest batch."""
    current = ledger.generations.current("orders")
    assert current is not None
    states: dict[str, bytes] = {}
    for worker in current.workers:
        with open_shard(worker.location) as shard:
            for key, state in shard.read_states(OPERATOR, KEYS, 1_000, NEWEST_EPOCH).items():
                assert state.data is not None
                states[key] = state.data
    return states


def expected(*batches: int) -> dict[int, set[tuple[str, str | None]]]:
    """What `content` returns for these batches."""
    return {batch: {(key, f"[{batch},null]") for key in KEYS} for batch in batches}
