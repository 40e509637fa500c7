"""Rebuilds a pipeline's state from its topics, in a new generation.

Meanwhile, readers use the old generation. The rebuild reads the topics up to the old generation's
last snapshot. It writes no output, because the old generation has written it already. Then the new
generation is promoted, and the next run continues from it. A rebuild repairs lost or damaged
shards, and applies changes of the pipeline to its whole history.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import msgspec
import structlog
from pyspark.sql import SparkSession

from sluice.engine.batch.storage import Storage
from sluice.engine.publish.kafka_transaction import fence
from sluice.engine.publish.markers import Writer, read_markers
from sluice.engine.publish.target_tables import databases_of
from sluice.engine.read.matching_topics import with_matching_topics
from sluice.engine.read.replay_offsets import (
    ends_of,
    limit_to_ranges,
    offsets_at,
    position,
    require_records,
    sources_from_point,
    sources_from_topics,
)
from sluice.engine.read.source_identity import (
    Positions,
    SourceIdentity,
    TopicState,
    describe_topics,
)
from sluice.engine.run.batch_loop import divide_records
from sluice.engine.run.batch_size import BatchSize
from sluice.engine.run.broken_readers import require_kept_interface
from sluice.engine.run.compatibility import computes_same_state
from sluice.engine.run.driver_lease import Lease, current_lease, this_process
from sluice.engine.run.job_run import JobRun
from sluice.engine.run.pipeline_check import NoRecords
from sluice.engine.run.replay import ReplayStep, replay_steps
from sluice.engine.run.streaming_query import JobQuery
from sluice.errors import EngineError, NothingToReplay, Refused, StateError
from sluice.operations.recovery import recover
from sluice.plan import Job
from sluice.settings import Settings
from sluice.state.ledger.audits import Audit
from sluice.state.ledger.history import Batch
from sluice.state.ledger.leases import LeaseRow
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.sources import SourcePartition
from sluice.state.model import GenerationRef, Snapshot
from sluice.state.remote.opening import drop_shard
from sluice.state.shard.addresses import shards_of
from sluice.values.record_places import Partition
from sluice.values.replay_span import EVERYTHING, Point, Span

log = structlog.get_logger()


@dataclass(frozen=True)
class Rebuild:
    """Rebuilds a pipeline's state.

    If `from_topics` is set, the rebuild may read fewer records than the old generation, because the
    topics may have deleted some. `run` promotes the new generation at once, and runs wait for it.
    `replay` builds the new generation beside the current generation while runs go on. Both
    generations exist until the new one is dropped or promoted. `promote` repeats the batches that
    runs have published since the replay, and then makes the new generation current.

    If `only` is given, these methods raise LeaseError if generation `only` is not current any more.
    `why` is the damage to repair, if any; it is stored in a note together with the duration of the
    rebuild.
    """

    spark: SparkSession
    job: Job
    settings: Settings
    from_topics: bool = False
    only: int | None = None
    why: str = ""

    def run(self) -> int:
        """Build and promote a new generation. Return the generation's number.

        Raise InputError if the topics no longer have all records that were read, unless
        `from_topics`; LeaseError while a driver works on the pipeline; EngineError if the result
        differs from what was published.
        """
        name, begun = self.job.pipeline.name, time.monotonic()
        if not self._is_known():
            return self._begin_anew()
        with Ledger.open(self.settings.ledger) as ledger, self.current(ledger) as lease:
            old = lease.ref
            rebuilding = self.with_topics(ledger, old)
            self._require_kept_interface(ledger, old)
            # If an earlier rebuild was killed, remove the generation that it left behind.
            drop_other_generations(ledger, self.job.pipeline.name, lease.row)
            sources, now = rebuilding._sources(ledger, old)
            history = rebuilding._history(ledger, old, sources, now)
            new = ledger.generations.new(name, self.newest_writer(old))
            ledger.sources.replace(new, sources, lease.row)
            # If a worker moves while the generation is built, the promotion fails: the worker's new
            # shard is at the server that the worker has left.
            places = ledger.placements.epochs(name)
            rebuilding.build(new, history.published)
            # Compare the state before the unpublished batch is built, because that batch has no
            # published checksums.
            self._compare(ledger, old, new, history)
            # The output of the unpublished batch is written already, so the next run must not read
            # the batch's records again.
            rebuilding.build(new, history.unpublished)
            seconds = round(time.monotonic() - begun, 1)
            note = ""
            if self.why:
                note = f"State was damaged, and restored from the topics in {seconds} s: {self.why}"
            ledger.generations.promote(new, lease.row, self.settings.run, note, places=places)
        log.info(
            "generation promoted", pipeline=name, generation=new.generation, before=old.generation,
            seconds=seconds,
        )  # fmt: skip
        return new.generation

    def _is_known(self) -> bool:
        """Return whether the ledger knows the pipeline.

        A ledger that was lost is recovered from the markers first.

        If `from_topics` is set, the pipeline may be unknown. Otherwise, raise Refused if the ledger
        cannot be recovered.
        """
        name = self.job.pipeline.name
        with Ledger.open(self.settings.ledger) as ledger:
            if ledger.generations.current_number(name) is not None:
                return True
        try:
            recovered = recover(self.job, self.settings)
        except Refused:
            if self.from_topics:
                return False
            raise
        return recovered is not None

    def _begin_anew(self) -> int:
        """Build the first generation of a pipeline that the ledger does not know, from its topics.

        Write no output for the records up to the newest marker. If there are no markers, write no
        output for the records that the topics have now. Return the generation's number.
        """
        name = self.job.pipeline.name
        note = (
            "The ledger did not know the pipeline, "
            "so its state was built from the topics, without output."
        )
        with Ledger.open(self.settings.ledger) as ledger, self.current(ledger) as lease:
            rebuilding = self.with_topics(ledger, lease.ref)
            now = describe_topics(self.settings.kafka, rebuilding.job.topics)
            sources = [*sources_from_topics([], now)]
            written = fence(
                self.settings.kafka, Writer(lease.ref, self.job.pipeline.markers)
            ).markers
            new = ledger.generations.new(name, max(written, default=0))
            for address in shards_of(self.settings.shards, name).get(new.generation, []):
                drop_shard(address)
            ledger.sources.replace(new, sources, lease.row)
            stops: dict[Partition, int] = {}
            if written:
                firsts = {source.place: source.first for source in sources}
                stops = _stops(written[max(written)].with_earlier.ends, firsts)
            ranges = ends_of(now, sources, stops)
            begin, ends = _firsts_of(ranges), _ends_of(ranges)
            rebuilding.build(new, rebuilding._divide_records(begin, ends))
            ledger.generations.promote(new, lease.row, self.settings.run, note)
        log.info("state built", pipeline=name, generation=new.generation)
        return new.generation

    def replay(self, span: Span = EVERYTHING) -> int:
        """Build a new generation from a part of the topics, without promoting it.

        Return its number. The new generation replaces an earlier replay's generation. Its state
        may differ from the current state; the user decides whether to promote it. Raise the same
        errors as `run`, and NothingToReplay if no record was read in that part.
        """
        with Ledger.open(self.settings.ledger) as ledger:
            with self.current(ledger) as lease:
                old = lease.ref
                rebuilding = self.with_topics(ledger, old)
                self._require_kept_interface(ledger, old)
                new, steps = rebuilding.begin_beside(ledger, lease, span)
            rebuilding.build(new, steps)
        log.info(
            "generation built",
            pipeline=old.pipeline,
            generation=new.generation,
            current=old.generation,
        )
        return new.generation

    def begin_beside(
        self, ledger: Ledger, lease: Lease, span: Span = EVERYTHING
    ) -> tuple[GenerationRef, Sequence[ReplayStep]]:
        """Begin a generation beside the current one, and remove all others.

        Return the new generation, and the batches to pass to `build` once the lease is released.
        `lease` is the lease of the current generation.
        """
        old = lease.ref
        sources, now = self._sources(ledger, old, span.begin)
        history = self._history(ledger, old, sources, now, span.until)
        from_streams = [source for source in sources if source.topic in self._streams]
        _require_records(history, from_streams or sources, span)
        drop_other_generations(ledger, self.job.pipeline.name, lease.row)
        new = ledger.generations.new(old.pipeline, self.newest_writer(old))
        ledger.sources.replace(new, sources, lease.row)
        return new, history.published

    def build(self, ref: GenerationRef, steps: Sequence[ReplayStep]) -> None:
        """Run batches of a generation that is not current, without output."""
        JobRun(
            self.spark,
            self.job,
            self.settings,
            ref.generation,
            self.settings.max_records,
            steps=steps,
        ).run()

    def steps_since(
        self, ledger: Ledger, old: GenerationRef, new: GenerationRef
    ) -> ReplayedHistory:
        """Return the batches of the current generation that a generation beside it has to repeat.

        The caller holds the lease of the current generation. Raise InputError if the topics have
        lost records that the generation beside it has not read yet.
        """
        sources, now = self._sources_of(ledger, old, new)
        return self._history(ledger, old, sources, now, built=_positions_read(ledger, new))

    def promote(self) -> int:
        """Bring the generation that `replay` has built up to date, and make it current.

        Return its number. Do nothing if the promotion is repeated, for example after the connection
        to the ledger was lost. Raise EngineError if there is no such generation, and the same
        errors as `run`.
        """
        with Ledger.open(self.settings.ledger) as ledger, self.current(ledger) as lease:
            if is_promoted(ledger, lease.ref):
                log.info(
                    "generation promoted already",
                    pipeline=lease.ref.pipeline,
                    generation=lease.ref.generation,
                )
                return lease.ref.generation
            old, new = lease.ref, replayed_generation(ledger, lease.ref)
            self._require_kept_interface(ledger, old)
            places = ledger.placements.epochs(old.pipeline)
            rebuilding = self.with_topics(ledger, old)
            history = rebuilding.steps_since(ledger, old, new)
            rebuilding.build(new, history.published)
            rebuilding.build(new, history.unpublished)
            note = (
                f"Generation {new.generation}, which a replay built, "
                f"replaced generation {old.generation}."
            )
            ledger.generations.promote(
                new, lease.row, self.settings.run, note, replayed=True, places=places
            )
        log.info(
            "generation promoted",
            pipeline=old.pipeline,
            generation=new.generation,
            before=old.generation,
        )
        return new.generation

    def current(self, ledger: Ledger) -> AbstractContextManager[Lease]:
        """Return the lease of the current generation.

        If `from_topics` is set, the ledger need not know the pipeline: after it was lost, a rebuild
        makes the pipeline's first generation.
        """
        name = self.job.pipeline.name
        if not self.from_topics and ledger.generations.current_number(name) is None:
            raise EngineError(
                f"The ledger knows no state of {name}, so there is nothing to rebuild.",
                next_step=f"Run it: sluice run {name}. Or, if the ledger was lost, "
                f"see what can be recovered: sluice recover {name} --dry-run.",
            )
        return current_lease(
            ledger, name, this_process(self.settings.run or "rebuild"), only=self.only
        )

    def with_topics(self, ledger: Ledger, old: GenerationRef) -> Rebuild:
        """Return this rebuild with a job that also names the topics matching its patterns.

        If `from_topics` is not set, these include the topics that the old generation has read, even
        if they no longer exist.
        """
        earlier = None if self.from_topics else old
        return replace(
            self, job=with_matching_topics(self.job, self.settings.kafka, ledger, earlier)
        )

    def _require_kept_interface(self, ledger: Ledger, old: GenerationRef) -> None:
        """Raise BreaksReadersError if the new generation lacks what other pipelines read."""
        before = ledger.generations.get(old)
        if before is None:
            return
        storage = Storage.of(self.job, old.generation, self.settings)
        partitions = dict.fromkeys(self.job.topics, 1)
        query = JobQuery(self.spark, storage, NoRecords(self.spark), partitions)
        require_kept_interface(ledger, before, query.info, self.job.pipeline)

    def _divide_records(self, begin: Positions, target: Positions) -> list[ReplayStep]:
        most = BatchSize(self.settings.memory, self.settings.max_records).most_records()
        return divide_records(self.job, self.settings.kafka, begin, target, most)

    @property
    def _streams(self) -> list[str]:
        """The topics of streams.

        The start of a replay applies only to them, because a table's state needs all records of the
        table.
        """
        return [source.topic for source in self.job.streams if source.kind == "stream"]

    def _sources(
        self, ledger: Ledger, old: GenerationRef, begin: Point | None = None
    ) -> tuple[list[SourcePartition], Mapping[str, TopicState]]:
        """Return where a new generation begins to read, and the topics as they are now.

        By default, it begins where the old generation began. Topics that the old generation did not
        read are read from their beginning. Raise InputError if the topics have lost records that
        the new generation would read, unless `from_topics`.
        """
        sources, read = self._sources_read(ledger, old), _positions_read(ledger, old)
        now = describe_topics(self.settings.kafka, self.job.topics)
        if self.from_topics:
            sources = list(sources_from_topics(sources, now))
        else:
            sources += sources_from_topics([], _new_topics(ledger, old, now))
        if begin is not None:
            from_point = sources_from_point(begin, sources, self._streams, now, self.settings.kafka)
            sources = []
            for source in from_point:
                first = min(source.first, position(read, source, source.first))
                sources.append(msgspec.structs.replace(source, first=first))
        require_records(old, sources, now, read={} if self.from_topics else read)
        if not self.from_topics:
            self._require_last_records(ledger, old, now)
        return sources, now

    def _sources_of(
        self, ledger: Ledger, old: GenerationRef, new: GenerationRef
    ) -> tuple[list[SourcePartition], Mapping[str, TopicState]]:
        """Return where the built generation began to read, and the topics as they are now.

        Raise InputError if the topics have lost records that the generation has not read yet.
        """
        sources, reached = self._sources_read(ledger, new), _positions_read(ledger, new)
        now = describe_topics(self.settings.kafka, self.job.topics)
        same = _same_topics(ledger, old, now)
        read: dict[str, Mapping[str, int]] = {}
        for topic, ends in _positions_read(ledger, old).items():
            if topic in same:
                read[topic] = ends
        unread: list[SourcePartition] = []
        for source in sources:
            first = position(reached, source, source.first)
            unread.append(msgspec.structs.replace(source, first=first))
        require_records(old, unread, now, read)
        self._require_last_records(ledger, old, now)
        return sources, now

    def _require_last_records(
        self,
        ledger: Ledger,
        ref: GenerationRef,
        now: Mapping[str, TopicState],
    ) -> None:
        """Raise InputError if a partition has other records now than a generation has read."""
        identity = SourceIdentity(
            self.settings.kafka, ledger.sources, ref, self.job.topics, ledger.audits
        )
        identity.require_last_records(now)

    def _sources_read(self, ledger: Ledger, ref: GenerationRef) -> list[SourcePartition]:
        """Return where a generation began to read the topics that the job still reads."""
        sources: list[SourcePartition] = []
        for source in ledger.sources.get(ref):
            if source.topic in self.job.topics:
                sources.append(source)
        return sources

    def _history(
        self,
        ledger: Ledger,
        old: GenerationRef,
        sources: Iterable[SourcePartition],
        now: Mapping[str, TopicState],
        until: Point | None = None,
        built: Positions | None = None,
    ) -> ReplayedHistory:
        """Return the old generation's batches, limited to the records of `sources` before `until`.

        Topics that the old generation did not read are read up to their ends. If `built` is given,
        they are read only up to these offsets, which the new generation has reached already.
        """
        new_topics = _new_topics(ledger, old, now)
        topics = _same_topics(ledger, old, now) | new_topics
        stops = {} if until is None else offsets_at(until, topics, self.settings.kafka)
        ends = ends_of(topics, sources, stops)
        added_ends = _added_ends(new_topics, ends, built)
        # A join needs all records of a global table before any record of a stream, so a new table
        # is read first. The records of new streams are divided into batches.
        tables = {table.source.topic for table in self.job.tables}
        ends_of_first_batch: dict[str, dict[str, int]] = {}
        for topic, ends_of_topic in added_ends.items():
            if topic in tables or built is not None:
                ends_of_first_batch[topic] = ends_of_topic
        latest = ledger.snapshots.latest(old.pipeline)
        published_positions = latest.positions if latest else {}
        ends_to_reach = limit_to_ranges(ends, {**published_positions, **added_ends})
        batches, unpublished = ledger.history.all(old), self._unpublished(ledger, latest, old)
        steps = [*replay_steps([*batches, *unpublished])]
        published_steps = _steps_within(ends, steps[: len(batches)], ends_of_first_batch)
        unpublished_steps = _steps_within(ends, steps[len(batches) :], added_ends)
        if not latest or (published_steps and published_steps[-1].ends == ends_to_reach):
            complete = not any(batch.boundaries_lost for batch in batches)
            return ReplayedHistory(published_steps, unpublished_steps, complete)
        if added_ends.keys() == ends_of_first_batch.keys():
            log.warning(
                "history lost",
                pipeline=old.pipeline,
                generation=old.generation,
                batches=len(batches),
                note=_NO_HISTORY,
            )
        else:
            log.warning(
                "new topics", pipeline=old.pipeline, topics=sorted(added_ends), note=_NEW_TOPICS
            )
        divided_steps: list[ReplayStep] = []
        for step in self._divide_records(_firsts_of(ends), ends_to_reach):
            divided_steps.append(replace(step, ends={**step.ends, **ends_of_first_batch}))
        return ReplayedHistory(divided_steps, unpublished_steps, complete=False)

    def _unpublished(
        self,
        ledger: Ledger,
        latest: Snapshot | None,
        old: GenerationRef,
    ) -> list[Batch]:
        """Return the batch whose output was written but whose snapshot was not published.

        If the ledger was restored from a backup, several batches may have been written after the
        backup. They are returned as one batch, which has the last batch's number and the records of
        all these batches.
        """
        # `fence` keeps other drivers from writing, and reads the markers. Without `fence`, a driver
        # that has not noticed the loss of its lease could write another batch after the markers
        # were read.
        output = fence(self.settings.kafka, Writer(old, self.job.pipeline.markers))
        formerly = ledger.renames.former_names(self.job.pipeline.name)
        for database in databases_of(self.job, self.settings, formerly).values():
            database.fence()
        if output.lacks_marker(ledger.audits.newest(old)):
            self._require_no_batch_between(ledger, old, latest)
        last = max(output.newest_generation, old.generation)
        marker = output.markers.get(last)
        newest_published = (old.generation, latest.batch if latest else -1)
        if marker is None or (last, marker.batch.number) <= newest_published:
            return []
        return [marker.with_earlier]

    def _require_no_batch_between(
        self,
        ledger: Ledger,
        old: GenerationRef,
        latest: Snapshot | None,
    ) -> None:
        """Raise EngineError, unless `from_topics`, if a batch without a marker may have output."""
        markers, published = self.job.pipeline.markers, -1 if latest is None else latest.batch
        planned = ledger.plans.unpublished(old)
        if planned is None:
            log.warning(
                "markers lost",
                topic=markers,
                note="No output is written twice: every batch was published.",
            )
        elif self.from_topics:
            log.warning(
                "markers lost",
                topic=markers,
                note=f"Output after batch {published} may be written twice.",
            )
        else:
            raise EngineError(
                f"Batch {planned.number} of {old.pipeline} began but was not published, and its "
                f"marker is missing from {markers}, so Sluice cannot tell whether its output was "
                "written.",
                next_step="Restore the topic's records. To accept that this batch's output may be "
                f"written twice: sluice topics accept {old.pipeline} --may-repeat. Then repeat the "
                "rebuild.",
            )

    def newest_writer(self, old: GenerationRef) -> int:
        """Return the newest generation that has written output.

        The markers name it. A ledger that was restored from a backup may not know it.
        """
        return max(
            read_markers(self.settings.kafka, Writer(old, self.job.pipeline.markers)), default=0
        )

    def _compare(
        self,
        ledger: Ledger,
        old: GenerationRef,
        new: GenerationRef,
        history: ReplayedHistory,
    ) -> None:
        """Raise EngineError if the same topology and records do not give the published state."""
        before, after = ledger.generations.get(old), ledger.generations.get(new)
        assert before is not None
        assert after is not None
        published = _checksums(ledger.audits.newest(old), history)
        rebuilt = _checksums(ledger.audits.newest(new), history)
        # Changed functions may give other results on purpose, so only the same topology has to give
        # the same state.
        is_same_topology = before.description == after.description and computes_same_state(
            before, after
        )
        # The rebuild repeats the calls and look-ups whose answers were never recorded or have been
        # removed. They may get other answers now.
        may_differ = self.from_topics or not is_same_topology or self.job.calls_out
        if not published or (may_differ and published != rebuilt):
            log.info("state rebuilt", generation=new.generation, checksums=rebuilt)
        elif published == rebuilt:
            log.info(
                "state rebuilt, equal to the published state",
                generation=new.generation,
                checksums=rebuilt,
            )
        else:
            note = "" if history.complete else f" {_NO_HISTORY}"
            raise EngineError(
                f"The rebuilt state of {new.pipeline} has the checksums {rebuilt}, "
                f"but {published} were published. The old state is still in use.{note}",
                next_step=f"Generation {new.generation} is kept for inspection. To accept the "
                f"rebuilt state: sluice rebuild {new.pipeline} --from-topics.",
            )


@dataclass(frozen=True)
class ReplayedHistory:
    """The batches to replay: published batches, and perhaps an unpublished batch with output."""

    published: Sequence[ReplayStep]
    unpublished: Sequence[ReplayStep]
    complete: bool
    """Whether the ledger has all batches. If not, the same records are divided into other
    batches."""


def _checksums(audit: Audit | None, history: ReplayedHistory) -> dict[str, str]:
    """Return each worker's checksums to compare: of state rows and, usually, operator states."""
    if audit is None:
        return {}
    if not history.complete:
        # Operator states may depend on where batches end, so only the state rows are compared.
        return audit.checksums
    checksums: dict[str, str] = {}
    for worker, state_rows in audit.checksums.items():
        checksums[worker] = f"{state_rows}/{audit.states.get(worker, '')}"
    return checksums


_NO_HISTORY = (
    "The ledger does not have all batches. Results that depend on the order of records of several "
    "topics, or on the time of processing, may differ."
)


_NEW_TOPICS = (
    "The new topics are read from their beginning, together with the other topics, in new batches. "
    "No output is written for the records that the new topics have now."
)


def _require_records(
    history: ReplayedHistory, sources: Iterable[SourcePartition], span: Span
) -> None:
    """Raise NothingToReplay if no record was read in the chosen part of the topics."""
    if span == EVERYTHING:
        return
    last = history.published[-1].ends if history.published else {}
    if not any(position(last, source, source.first) > source.first for source in sources):
        raise NothingToReplay(
            "The replay would read no records: the pipeline has read none between the chosen "
            "start and end.",
            next_step="Choose an earlier start or a later end.",
        )


def _positions_read(ledger: Ledger, ref: GenerationRef) -> Positions:
    """Return the offsets up to which a generation has read and published."""
    batch = ledger.snapshots.last_batch(ref)
    if batch is None:
        return {}
    snapshot = ledger.snapshots.get(ref, batch)
    return {} if snapshot is None else snapshot.positions


def _same_topics(
    ledger: Ledger, old: GenerationRef, now: Mapping[str, TopicState]
) -> dict[str, TopicState]:
    """Return the topics that have not been created again since a generation began to read them."""
    ids = {source.topic: source.topic_id for source in ledger.sources.get(old)}
    same: dict[str, TopicState] = {}
    for name, topic in now.items():
        if ids.get(name) == topic.id:
            same[name] = topic
    return same


def _new_topics(
    ledger: Ledger, old: GenerationRef, now: Mapping[str, TopicState]
) -> dict[str, TopicState]:
    """Return the topics that were added to the pipeline after a generation."""
    earlier = {source.topic for source in ledger.sources.get(old)}
    earlier |= _positions_read(ledger, old).keys()
    return {name: topic for name, topic in now.items() if name not in earlier}


def _firsts_of(ranges: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, dict[str, int]]:
    """Return the first offset of each partition: topic → partition as text → offset."""
    firsts: dict[str, dict[str, int]] = {}
    for topic, partitions in ranges.items():
        firsts[topic] = {str(number): first for number, (first, _) in enumerate(partitions)}
    return firsts


def _ends_of(ranges: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, dict[str, int]]:
    """Return the end offset of each partition: topic → partition as text → offset."""
    ends: dict[str, dict[str, int]] = {}
    for topic, partitions in ranges.items():
        ends[topic] = {str(number): end for number, (_, end) in enumerate(partitions)}
    return ends


def _added_ends(
    new_topics: Iterable[str],
    ends: Mapping[str, Sequence[tuple[int, int]]],
    built: Positions | None,
) -> dict[str, dict[str, int]]:
    """Return the end offsets of topics that the old generation did not read.

    They come from `built` if it is given, otherwise from `ends`.
    """
    if built is None:
        return _ends_of({topic: ends[topic] for topic in new_topics})
    return {topic: {**built.get(topic, {})} for topic in new_topics}


def _steps_within(
    ranges: Mapping[str, Sequence[tuple[int, int]]],
    steps: Iterable[ReplayStep],
    added_ends: Positions,
) -> list[ReplayStep]:
    """Return the steps, with `added_ends` as the ends of added topics.

    All ends are limited to `ranges`.
    """
    limited: list[ReplayStep] = []
    for step in steps:
        limited.append(replace(step, ends=limit_to_ranges(ranges, {**step.ends, **added_ends})))
    return limited


def _stops(written: Positions, firsts: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return where to stop in each partition.

    In a partition that the marker does not name, no record's output has been written.
    """
    stops = dict(firsts)
    for topic, partitions in written.items():
        for number, end in partitions.items():
            stops[topic, int(number)] = end
    return stops


def is_promoted(ledger: Ledger, current: GenerationRef) -> bool:
    """Return whether nothing is left to promote.

    The current generation is then the newest generation, and a replay has built it.
    """
    new = ledger.generations.new(current.pipeline)
    # Numbers are never used twice. If the next number follows the current generation's number, no
    # generation was begun after the current one.
    is_last = new.generation == current.generation + 1
    return is_last and ledger.generations.is_replayed(current.pipeline)


def replayed_generation(ledger: Ledger, current: GenerationRef) -> GenerationRef:
    """Return the generation that a replay has built beside the current generation.

    Raise EngineError if there is none.
    """
    numbers = ledger.generations.numbers(current.pipeline)
    if numbers[-1] <= current.generation:
        raise EngineError(
            f"{current.pipeline} has no generation beside the current one, {current.generation}.",
            next_step=f"Build one: sluice generations replay {current.pipeline}.",
        )
    return msgspec.structs.replace(current, generation=numbers[-1])


def drop_built(job: Job, settings: Settings) -> int:
    """Remove the generation that a replay built. Return its number.

    Raise EngineError if there is no such generation. If a drop is repeated, for example because it
    was interrupted, removes what is left.
    """
    name = job.pipeline.name
    holder = this_process(settings.run or "drop")
    with Ledger.open(settings.ledger) as ledger, current_lease(ledger, name, holder) as lease:
        last = ledger.generations.new(name).generation - 1
        is_dropped = last > max([lease.ref.generation, *ledger.generations.numbers(name)])
        dropped = last if is_dropped else replayed_generation(ledger, lease.ref).generation
        drop_other_generations(ledger, name, lease.row)
    if is_dropped:
        log.info("generation dropped already", pipeline=name, generation=dropped)
    else:
        log.info("generation dropped", pipeline=name, generation=dropped)
    return dropped


def drop_other_generations(
    ledger: Ledger,
    name: str,
    lease: LeaseRow,
    *,
    but: Collection[GenerationRef] = (),
) -> None:
    """Remove a pipeline's generations, except the lease's generation and those in `but`.

    Unfinished generations are removed, too. Raise LeaseError and delete nothing if the lease is no
    longer held, because another generation may be current by now.
    """
    for generation in ledger.generations.numbers(name):
        # The ledger forgets the generation before its shards are removed, so that no other driver
        # can promote a generation without shards.
        ref = GenerationRef(name, generation)
        if generation != lease.generation and ref not in but:
            ledger.generations.forget(ref, lease)
    remove_forgotten(ledger, name)


def remove_forgotten(ledger: Ledger, name: str) -> None:
    """Remove the shards of a pipeline's generations that the ledger has forgotten."""
    for ref, workers in ledger.generations.forgotten(name).items():
        try:
            for worker in workers:
                drop_shard(worker.location)
        except (StateError, Refused) as error:
            # The next call tries again. Until then, a database or state server that is down, or has
            # not got the shard yet, must not stop a rebuild.
            log.warning(
                "shards not removed", pipeline=name, generation=ref.generation, why=error.detail
            )
            continue
        ledger.generations.forget_workers(ref)
