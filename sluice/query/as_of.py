"""The read point of a query: a snapshot, a run or a time, and how far the state must have progressed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.errors import Gone, NotFound, NotReached, QueryError
from sluice.query.times import parse_time
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import JobRef, Snapshot

_RUN = "run:"
_INTEGER, _BIGINT = 2**31 - 1, 2**63 - 1
"""The largest numbers that the ledger's columns hold, which are Kafka's too."""
_LONGEST = 30


@dataclass(frozen=True)
class AsOf:
    """`as_of` is a snapshot ("1.42"), a run ("run:NAME") or a time; None is the newest snapshot.

    `min_snapshot` and `min_positions` (topic → partition → next offset) are what the snapshot must have reached.
    """

    as_of: str | None = None
    min_snapshot: str | None = None
    min_positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def has_bounds(self) -> bool:
        """Whether the snapshot must have reached anything."""
        return self.min_snapshot is not None or bool(self.min_positions)

    def is_reached(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot keeps to the bounds."""
        if self.min_snapshot is not None and (snapshot.generation, snapshot.batch) < parse_snapshot(self.min_snapshot):
            return False
        return all(
            snapshot.positions.get(topic, {}).get(partition, 0) >= offset
            for topic, partitions in self.min_positions.items()
            for partition, offset in partitions.items()
        )

    def demand(self, snapshot: Snapshot) -> None:
        """Raise NotReached, with how far the state is, if the snapshot does not keep to the bounds."""
        if not self.is_reached(snapshot):
            said = {"snapshot": snapshot.id, "positions": snapshot.positions}
            raise NotReached(
                f"The state is at snapshot {snapshot.id}, which is before what is demanded.", extensions=said
            )


NEWEST = AsOf()


def find_snapshot(ledger: Ledger, newest: Snapshot, as_of: str) -> Snapshot:
    """The snapshot that `as_of` names; NotFound if there is none, Gone if it is no longer kept."""
    pipeline, job = newest.pipeline, newest.job
    if as_of.startswith(_RUN):
        # PostgreSQL refuses a NUL in any text, and no run's name has one.
        found = None if "\0" in as_of else ledger.snapshots.of_run(pipeline, job, as_of.removeprefix(_RUN))
        if found is None:
            raise NotFound(
                f"No snapshot is known that the run {as_of.removeprefix(_RUN)[:100]!r} has published.",
                next_step="The run found nothing to read, or its snapshots are no longer kept.",
            )
        return found
    if "." in as_of and not _is_time(as_of):
        generation, batch = parse_snapshot(as_of)
        found = ledger.snapshots.get(JobRef(pipeline, job, generation), batch)
        return found or _missing(ledger, newest, f"There is no snapshot {as_of} of job {job!r}", (generation, batch))
    moment = datetime.fromtimestamp((_time(as_of) or 0) / 1_000, UTC)
    found = ledger.snapshots.at(pipeline, job, moment)
    return found or _missing(ledger, newest, f"No snapshot is kept that was there at {moment.isoformat()}", (-1, -1))


def parse_snapshot(text: str) -> tuple[int, int]:
    """Generation and batch of a snapshot's name; QueryError if it is none."""
    left, _, right = text.partition(".")
    generation, batch = _number(left, _INTEGER), _number(right, _BIGINT)
    if generation is None or batch is None:
        raise _no_snapshot(text)
    return generation, batch


def parse_positions(text: str) -> dict[str, dict[str, int]]:
    """Positions from `topic:partition:offset`, several with commas between them; QueryError if it is something else."""
    found: dict[str, dict[str, int]] = {}
    for part in text.split(","):
        topic, _, rest = part.strip().partition(":")
        left, _, right = rest.partition(":")
        partition, offset = _number(left, _INTEGER), _number(right, _BIGINT)
        if not topic or partition is None or offset is None:
            raise QueryError(
                "min_position is no position.", next_step="Write TOPIC:PARTITION:OFFSET, several with commas between."
            )
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _number(text: str, most: int) -> int | None:
    """A number from 0 to `most`; None for every other text."""
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
        f"{text[:40]!r} is no snapshot, run or time.",
        next_step="Write generation.batch, for example 1.42, or run:NAME, or a time.",
    )
