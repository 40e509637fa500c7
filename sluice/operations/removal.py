"""Removes a pipeline that is no longer run: its state, its part of the ledger, and its own topics.

The ledger forgets the pipeline first, so that no query reads a shard that is being deleted. Then
the shards are deleted, and then the topics and the consumer group. If this is interrupted, the
repeated call removes the rest. What the pipeline has written to topics and tables stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog

from sluice.engine.publish.consumer_group import group_of
from sluice.engine.run.driver_lease import PATIENCE, Patience, current_lease, this_process
from sluice.errors import AccessDenied, NotFound, Refused, StateError
from sluice.kafka.dead_letter_topic import markers_of, topic_of
from sluice.kafka.redrive_topic import batches_of
from sluice.kafka.topics import delete_group, delete_topics, topic_ids
from sluice.operations.rebuild import remove_forgotten
from sluice.operations.store_readers import readers_of
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import WorkerInfo
from sluice.state.shard.addresses import shown
from sluice.values.phrases import counted, joined

log = structlog.get_logger()


@dataclass(frozen=True)
class Removal:
    """What there is to remove of a pipeline."""

    pipeline: str
    generations: tuple[int, ...]
    stores: tuple[str, ...]
    shards: tuple[str, ...]
    """The addresses of the shards, without passwords."""
    topics: tuple[str, ...]
    renamed_to: str = ""
    """If this is a former name: the present name of the renamed pipeline. Otherwise empty."""

    def lines(self) -> Iterator[str]:
        """Describe what is removed, in sentences."""
        if self.renamed_to:
            yield (
                f"{self.pipeline} is the former name of {self.renamed_to}. The ledger forgets the "
                "name. Another pipeline can then use it."
            )
        if self.generations:
            numbers = counted(len(self.generations), "generation")
            yield f"The ledger forgets {self.pipeline} with {numbers} of its state."
            yield f"The consumer group {group_of(self.pipeline)} is deleted if it exists."
        if self.stores:
            yield f"These stores can no longer be queried: {', '.join(self.stores)}."
        if self.shards:
            yield f"{counted(len(self.shards), 'shard')} deleted: {', '.join(self.shards)}."
        if self.topics:
            yield f"{counted(len(self.topics), 'topic')} deleted: {', '.join(self.topics)}."


def find_removal(
    ledger: Ledger, settings: Settings, pipeline: str, *, keep_dead_letters: bool = False
) -> Removal:
    """Find what there is to remove of a pipeline. Raise NotFound if there is nothing."""
    if renamed_to := _renamed_to(ledger, pipeline):
        return Removal(pipeline, (), (), (), (), renamed_to)
    infos = ledger.generations.all(pipeline)
    shards: list[str] = []
    for info in infos:
        shards += _addresses(info.workers)
    for workers in ledger.generations.forgotten(pipeline).values():
        shards += _addresses(workers)
    topics = [batches_of(pipeline)]
    if not keep_dead_letters:
        topics += [topic_of(pipeline), markers_of(pipeline)]
    existing = topic_ids(settings.kafka, topics)
    stores: list[str] = []
    current = ledger.generations.current(pipeline)
    if current is not None:
        stores = [*current.stores_by_name]
    removal = Removal(
        pipeline,
        generations=tuple(info.ref.generation for info in infos),
        stores=tuple(stores),
        shards=tuple(shards),
        topics=tuple(topic for topic in topics if topic in existing),
    )
    if not (infos or removal.shards or removal.topics):
        raise NotFound(
            f"There is no pipeline {pipeline!r}: it has neither state nor its own topics.",
            next_step="Look for its name in: sluice status.",
        )
    return removal


def require_removable(ledger: Ledger, pipeline: str) -> None:
    """Raise Refused if the pipeline has standbys, or if other pipelines read its stores."""
    if standbys := ledger.standbys.of(pipeline):
        workers = joined(list(map(str, sorted(standbys))))
        raise Refused(
            f"{pipeline} has standbys for the workers {workers}.",
            next_step=f"Remove the standbys first: sluice standby remove {pipeline} WORKER.",
        )
    if readers := readers_of(ledger, pipeline):
        raise Refused(
            f"The newest batches of {joined(readers)} read stores of {pipeline}.",
            next_step="Remove store_of from the files of these pipelines and run them once, or "
            "remove these pipelines first.",
        )


def remove(
    settings: Settings,
    pipeline: str,
    *,
    keep_dead_letters: bool = False,
    patience: Patience = PATIENCE,
) -> Removal:
    """Remove a pipeline. Return what has been removed.

    Raise LeaseError if the pipeline is running, Refused if it has standbys or other pipelines read
    its stores, and StateError if a shard cannot be deleted now.
    """
    holder = this_process(settings.run or "remove")
    with Ledger.open(settings.ledger) as ledger:
        removal = find_removal(ledger, settings, pipeline, keep_dead_letters=keep_dead_letters)
        if removal.renamed_to:
            ledger.renames.forget(pipeline)
            return removal
        require_removable(ledger, pipeline)
        with current_lease(ledger, pipeline, holder, patience) as lease:
            ledger.generations.forget_pipeline(lease.row)
            remove_forgotten(ledger, pipeline)
        if left := ledger.generations.forgotten(pipeline):
            places: list[str] = []
            for forgotten in left.values():
                places += _addresses(forgotten)
            raise StateError(
                f"These shards of {pipeline} could not be deleted: {', '.join(places)}. Queries no "
                "longer find the pipeline.",
                next_step="When the database or server of these shards answers, repeat: sluice "
                f"remove {pipeline}.",
            )
        delete_topics(settings.kafka, removal.topics)
        try:
            delete_group(settings.kafka, group_of(pipeline))
        except AccessDenied as error:
            # If Kafka denies the deletion, leave the group: Kafka itself forgets the offsets of an
            # unused group.
            log.warning("consumer group not deleted", pipeline=pipeline, why=error.detail)
    return removal


def _renamed_to(ledger: Ledger, pipeline: str) -> str:
    """Return the current name of a renamed pipeline; an empty text if it was not renamed.

    Raise Refused if the pipeline still needs its former name: its next run takes over the tables
    that it has written under this name.
    """
    renamed = ledger.renames.of(pipeline)
    if renamed is None or renamed.phase == "begun":
        return ""
    if renamed.phase == "switched":
        ledger.renames.require_current(pipeline)
    info, newest = ledger.generations.current(renamed.name), ledger.snapshots.latest(renamed.name)
    has_tables = info is not None and any(":" in output for output in info.outputs)
    renamed_at = datetime.fromisoformat(renamed.renamed_at)
    if has_tables and newest is not None and newest.published_at <= renamed_at:
        raise Refused(
            f"{renamed.name} has not run since it was renamed, and its next run takes over the "
            f"tables that it has written as {pipeline}.",
            next_step=f"Run it once: sluice run {renamed.name}.",
        )
    return renamed.name


def _addresses(workers: Iterable[WorkerInfo]) -> list[str]:
    """Return the addresses of the workers' shards, without passwords."""
    return [shown(worker.location) for worker in workers]
