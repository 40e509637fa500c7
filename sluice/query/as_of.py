"""The read point of a query: a snapshot, a run or a time, and how far the state must have progressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.errors import Gone, NotFound, NotReached, QueryError
from sluice.query.times import parse_time
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef, Snapshot

_RUN, _NEWEST, _STANDBY = "run:", ".newest", "standby"
_INTEGER, _BIGINT = 2**31 - 1, 2**63 - 1
"""The largest numbers that the ledger's columns hold, which are Kafka's too."""
_LONGEST = 30


@dataclass(frozen=True)
class AsOf:
    """`as_of` is a snapshot ("1.42" or "1.newest"), a run ("run:NAME") or a time; None is the newest snapshot.

    "standby" is the newest snapshot that all standbys of the pipeline's workers have.

    The snapshot must have reached `min_snapshot` and `min_positions` (topic → partition → next offset).
    """

    as_of: str | None = None
    min_snapshot: str | None = None
    min_positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def has_bounds(self) -> bool:
        """Whether a minimum snapshot or position is set."""
        return self.min_snapshot is not None or bool(self.min_positions)

    def is_reached(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot has reached the bounds."""
        if self.min_snapshot is not None and (snapshot.generation, snapshot.batch) < parse_snapshot(self.min_snapshot):
            return False
        return all(
            snapshot.positions.get(topic, {}).get(partition, 0) >= offset
            for topic, partitions in self.min_positions.items()
            for partition, offset in partitions.items()
        )

    def demand(self, snapshot: Snapshot) -> None:
        """Raise NotReached, with the state's progress, if the snapshot has not reached the bounds."""
        if not self.is_reached(snapshot):
            progress = {"snapshot": snapshot.id, "positions": snapshot.positions}
            raise NotReached(
                f"The state is at snapshot {snapshot.id}, which is before the requested minimum.", extensions=progress
            )


NEWEST = AsOf()


def find_snapshot(ledger: Ledger, newest: Snapshot, as_of: str) -> Snapshot:
    """The snapshot that `as_of` names. Raises NotFound if it never existed, and Gone if it is no longer kept."""
    pipeline, job = newest.pipeline, newest.job
    if as_of == _STANDBY:
        return _at_standbys(ledger, newest)
    if as_of.startswith(_RUN):
        # PostgreSQL rejects NUL in text, and no run's name contains NUL.
        snapshot = None if "\0" in as_of else ledger.snapshots.of_run(pipeline, job, as_of.removeprefix(_RUN))
        if snapshot is None:
            raise NotFound(
                f"The run {as_of.removeprefix(_RUN)[:100]!r} has no published snapshot.",
                next_step="The run found no records to read, or its snapshots are no longer kept.",
            )
        return snapshot
    if (number := _number(as_of.removesuffix(_NEWEST), _INTEGER)) is not None and as_of.endswith(_NEWEST):
        last = ledger.snapshots.last_batch(JobRef(pipeline, job, number))
        as_of = f"{number}.{last or 0}"
    if "." in as_of and not _is_time(as_of):
        generation, batch = parse_snapshot(as_of)
        snapshot = ledger.snapshots.get(JobRef(pipeline, job, generation), batch)
        return snapshot or _missing(ledger, newest, f"There is no snapshot {as_of} of job {job!r}", (generation, batch))
    moment = datetime.fromtimestamp((_time(as_of) or 0) / 1_000, UTC)
    snapshot = ledger.snapshots.at(pipeline, job, moment)
    return snapshot or _missing(ledger, newest, f"The snapshot of {moment.isoformat()} is not kept", (-1, -1))


def _at_standbys(ledger: Ledger, newest: Snapshot) -> Snapshot:
    workers = ledger.jobs.workers(newest.pipeline, newest.job)
    registered = ledger.standbys.of(newest.pipeline)
    # A worker that the pipeline no longer has may have left its standby.
    standbys = [registered[worker.number] for worker in workers if worker.number in registered]
    batches = [standby.batch for standby in standbys if standby.copied == newest.ref]
    if not batches or len(batches) < len(standbys):
        without = f"{len(standbys) - len(batches)} of the standbys of {newest.pipeline!r} have no copy of its state."
        raise NotFound(
            without if standbys else f"Pipeline {newest.pipeline!r} has no standbys.",
            next_step="Leave as_of out to read the newest snapshot.",
        )
    snapshot = ledger.snapshots.get(newest.ref, min(batches))
    return snapshot or _missing(ledger, newest, "The standbys' snapshot is not kept", (newest.generation, min(batches)))


def parse_snapshot(text: str) -> tuple[int, int]:
    """Parse a snapshot's id into generation and batch. Raises QueryError if the text is invalid."""
    left, _, right = text.partition(".")
    generation, batch = _number(left, _INTEGER), _number(right, _BIGINT)
    if generation is None or batch is None:
        raise _no_snapshot(text)
    return generation, batch


def parse_positions(text: str) -> dict[str, dict[str, int]]:
    """Parse positions: `topic:partition:offset`, separated by commas. Raises QueryError if the text is invalid."""
    positions: dict[str, dict[str, int]] = {}
    for part in text.split(","):
        topic, _, rest = part.strip().partition(":")
        left, _, right = rest.partition(":")
        partition, offset = _number(left, _INTEGER), _number(right, _BIGINT)
        if not topic or partition is None or offset is None:
            raise QueryError(
                "min_position is not a position.", next_step="Write TOPIC:PARTITION:OFFSET, separated by commas."
            )
        positions.setdefault(topic, {})[str(partition)] = offset
    return positions


def _number(text: str, most: int) -> int | None:
    """Parse a number from 0 to `most`. None for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST and int(text) <= most:
        return int(text)
    return None


def _missing(ledger: Ledger, newest: Snapshot, what: str, asked: tuple[int, int]) -> Snapshot:
    oldest = ledger.snapshots.oldest(newest.pipeline, newest.job) or newest
    kept = f"Snapshots {oldest.id} to {newest.id} are kept; leave as_of out to read the newest."
    if asked < (oldest.generation, oldest.batch):
        raise Gone(f"{what} any more.", next_step=kept, extensions={"oldest": oldest.id, "newest": newest.id})
    raise NotFound(f"{what}.", next_step=kept)


def _is_time(text: str) -> bool:
    return "-" in text or ":" in text


def _time(text: str) -> int | None:
    try:
        return parse_time("as_of", text)
    except QueryError:
        raise _no_snapshot(text) from None


def _no_snapshot(text: str) -> QueryError:
    return QueryError(
        f"{text[:40]!r} is not a snapshot, run or time.",
        next_step="Write generation.batch, for example 1.42 or 1.newest, or run:NAME, standby, or a time.",
    )
