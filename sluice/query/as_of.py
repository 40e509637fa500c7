"""The read point of a query: a snapshot, a run or a time, and the progress it must have made."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn

from sluice.errors import Gone, NotFound, NotReached, QueryError
from sluice.query.time_texts import parse_moment
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef, Snapshot

_RUN, _NEWEST, _STANDBY = "run:", ".newest", "standby"
"""The forms of a read point besides a snapshot's id and a time: run:NAME, GENERATION.newest and
standby."""
_INTEGER, _BIGINT = 2**31 - 1, 2**63 - 1
"""The largest numbers of the SQL types INTEGER and BIGINT. The ledger stores generation numbers as
INTEGER and batch numbers as BIGINT. Kafka's partitions and offsets have the same limits."""
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_LONGEST = 30
"""Texts with more digits than this are rejected without parsing, because Python takes long to parse
many thousand digits."""


@dataclass(frozen=True)
class AsOf:
    """The snapshot that a query reads, and the least progress that the snapshot must have made.

    `as_of` is a snapshot ("1.42"), a run ("run:NAME") or a time; None is the newest snapshot.
    "1.newest" is the newest snapshot of generation 1. "standby" is the newest snapshot that all
    standbys of the pipeline's workers have.

    A query raises NotReached if the snapshot has not reached `min_snapshot` and `min_positions`
    (topic → partition → next offset).
    """

    as_of: str | None = None
    min_snapshot: str | None = None
    min_positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def has_bounds(self) -> bool:
        """Whether a minimum snapshot or position is set."""
        return self.min_snapshot is not None or bool(self.min_positions)

    def is_reached(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot has reached the minimum snapshot and positions."""
        if self.min_snapshot is not None:
            reached = snapshot.generation, snapshot.batch
            if reached < parse_snapshot(self.min_snapshot):
                return False
        for topic, partitions in self.min_positions.items():
            read = snapshot.positions.get(topic, {})
            for partition, offset in partitions.items():
                if read.get(partition, 0) < offset:
                    return False
        return True

    def require_topics(self, topics: Collection[str]) -> None:
        """Raise QueryError if a minimum position is in a topic that the pipeline does not read."""
        for topic in self.min_positions:
            if topic not in topics:
                raise QueryError(
                    f"`min_position`: the store's pipeline does not read topic {topic[:100]!r}.",
                    next_step=f"Name a topic that the pipeline reads: {', '.join(sorted(topics))}.",
                )

    def require_reached(self, snapshot: Snapshot) -> None:
        """Raise NotReached, with the snapshot's progress, if it has not reached the minimum."""
        if self.is_reached(snapshot):
            return
        unread: list[str] = []
        for topic, partitions in self.min_positions.items():
            read = snapshot.positions.get(topic, {})
            for partition in partitions:
                if partition not in read:
                    unread.append(f"{topic}:{partition}")
        next_step = ""
        if unread:
            next_step = f"No run has read {', '.join(unread)}: check that the partition exists."
        raise NotReached(
            f"The state is at snapshot {snapshot.id}, which is before the requested minimum.",
            next_step=next_step,
            extensions={"snapshot": snapshot.id, "positions": snapshot.positions},
        )


NEWEST = AsOf()


def find_snapshot(ledger: Ledger, newest: Snapshot, as_of: str) -> Snapshot:
    """Return the snapshot that `as_of` names.

    Raises NotFound if it never existed, and Gone if it is no longer kept.
    """
    pipeline = newest.pipeline
    if as_of == _STANDBY:
        return _at_standbys(ledger, newest)
    if as_of.startswith(_RUN):
        return _of_run(ledger, pipeline, as_of.removeprefix(_RUN))
    number = _number(as_of.removesuffix(_NEWEST), _INTEGER)
    if number is not None and as_of.endswith(_NEWEST):
        newest_batch = ledger.snapshots.last_batch(GenerationRef(pipeline, number))
        if newest_batch is None:
            return _missing(
                ledger, newest, f"Generation {number} of {pipeline!r} has none", (number, 0)
            )
        as_of = f"{number}.{newest_batch}"
    if "." in as_of and not _is_time(as_of):
        generation, batch = parse_snapshot(as_of, or_else=_NO_READ_POINT)
        snapshot = ledger.snapshots.get(GenerationRef(pipeline, generation), batch)
        return snapshot or _missing(
            ledger, newest, f"There is no snapshot {as_of} of {pipeline!r}", (generation, batch)
        )
    when = _time(as_of)
    snapshot = ledger.snapshots.at(pipeline, when)
    return snapshot or _missing(
        ledger, newest, f"The snapshot of {when.isoformat()} is not kept", (-1, -1)
    )


def _of_run(ledger: Ledger, pipeline: str, run: str) -> Snapshot:
    snapshot = None
    # PostgreSQL rejects NUL in text, and no run's name contains NUL.
    if "\0" not in run:
        snapshot = ledger.snapshots.of_run(pipeline, run)
    if snapshot is None:
        raise NotFound(
            f"The run {run[:100]!r} has no published snapshot.",
            next_step="Leave `as_of` out to read the newest snapshot. Possible causes: the run "
            "found no records, or its snapshots are no longer kept.",
        )
    return snapshot


def _at_standbys(ledger: Ledger, newest: Snapshot) -> Snapshot:
    registered = ledger.standbys.of(newest.pipeline)
    number_of_standbys = 0
    batches: list[int] = []
    # The ledger may still list the standby of a worker that the pipeline no longer has.
    for worker in ledger.generations.workers(newest.pipeline):
        standby = registered.get(worker.number)
        if standby is not None:
            number_of_standbys += 1
            if standby.copied_generation == newest.ref:
                batches.append(standby.batch)
    if len(batches) < number_of_standbys or not batches:
        without_copy = number_of_standbys - len(batches)
        reason = f"Pipeline {newest.pipeline!r} has no standbys."
        if without_copy:
            reason = (
                f"{without_copy} of the standbys of {newest.pipeline!r} have no copy of its state."
            )
        raise NotFound(reason, next_step="Leave `as_of` out to read the newest snapshot.")
    snapshot = ledger.snapshots.get(newest.ref, min(batches))
    return snapshot or _missing(
        ledger, newest, "The standbys' snapshot is not kept", (newest.generation, min(batches))
    )


_NO_READ_POINT = (
    "is not a snapshot, run or time",
    "Write generation.batch, for example 1.42 or 1.newest, or run:NAME, standby, or a time.",
)
_NO_SNAPSHOT = ("is not a snapshot", "Write generation.batch, for example 1.42.")


def parse_snapshot(text: str, or_else: tuple[str, str] = _NO_SNAPSHOT) -> tuple[int, int]:
    """Parse a snapshot's id into generation and batch. Raises QueryError if the text is invalid."""
    snapshot = as_snapshot(text)
    if snapshot is None:
        raise _invalid_read_point(text, *or_else)
    return snapshot


def as_snapshot(text: str) -> tuple[int, int] | None:
    """Return the generation and batch of a snapshot's id; None for any other text."""
    left, _, right = text.partition(".")
    generation, batch = _number(left, _INTEGER), _number(right, _BIGINT)
    if generation is None or batch is None:
        return None
    return generation, batch


def parse_positions(text: str) -> dict[str, dict[str, int]]:
    """Parse positions: `topic:partition:offset`, separated by commas.

    Raises QueryError if the text is invalid.
    """
    positions: dict[str, dict[str, int]] = {}
    for position in text.split(","):
        topic, _, rest = position.strip().partition(":")
        left, _, right = rest.partition(":")
        partition, offset = _number(left, _INTEGER), _number(right, _BIGINT)
        if not topic or partition is None or offset is None:
            raise QueryError(
                "`min_position` is not a position.",
                next_step="Write TOPIC:PARTITION:OFFSET, separated by commas.",
            )
        # If a partition is given twice, the state must have reached the larger offset.
        offsets = positions.setdefault(topic, {})
        offsets[str(partition)] = max(offset, offsets.get(str(partition), 0))
    return positions


def _number(text: str, most: int) -> int | None:
    """Parse a number from 0 to `most`. Return None for any other text."""
    if text.isascii() and text.isdigit() and len(text) <= _LONGEST and int(text) <= most:
        return int(text)
    return None


def _missing(
    ledger: Ledger, newest: Snapshot, statement: str, requested: tuple[int, int]
) -> NoReturn:
    """Raise Gone if all kept snapshots are newer than the requested one, otherwise NotFound."""
    # `newest` is from the caller's cache. Retention may have removed that snapshot by now. The
    # error must only name kept snapshots, so read the newest snapshot again.
    newest = ledger.snapshots.latest(newest.pipeline) or newest
    oldest = ledger.snapshots.oldest(newest.pipeline) or newest
    kept = f"Snapshots {oldest.id} to {newest.id} are kept; leave `as_of` out to read the newest."
    if requested < (oldest.generation, oldest.batch):
        raise Gone(
            f"{statement} any more.",
            next_step=kept,
            extensions={"oldest": oldest.id, "newest": newest.id},
        )
    raise NotFound(f"{statement}.", next_step=kept)


def _is_time(text: str) -> bool:
    return "-" in text or ":" in text


def _time(text: str) -> datetime:
    try:
        time = parse_moment("as_of", text)
    except QueryError:
        raise _invalid_read_point(text, *_NO_READ_POINT) from None
    # A time near either end of Python's calendar may leave the calendar when it is converted to
    # UTC. Limit it to the calendar's ends.
    return min(max(time, _EARLIEST), _LATEST)


def _invalid_read_point(text: str, why: str, next_step: str) -> QueryError:
    return QueryError(f"{text[:40]!r} {why}.", next_step=next_step)
