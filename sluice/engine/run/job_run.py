"""Runs a job until it has read all records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import SparkSession

from sluice.engine.batch.job_topics import (
    TopicLimits,
    ensure_topics,
    partition_counts,
    topic_limits,
)
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.auditor import Auditor
from sluice.engine.publish.consumer_group import ConsumerGroup
from sluice.engine.publish.kafka_transaction import TransactionalOutput, dead_letter_limit
from sluice.engine.publish.markers import MARKER_SETTINGS, Writer
from sluice.engine.publish.output_identity import OutputIdentity
from sluice.engine.publish.output_writer import Destinations
from sluice.engine.publish.publisher import Publisher
from sluice.engine.publish.target_tables import table_sinks
from sluice.engine.read.kafka_input import KafkaInput
from sluice.engine.read.matching_topics import with_matching_topics
from sluice.engine.read.source_identity import Positions, SourceIdentity
from sluice.engine.run.batch_loop import BatchLoop, expect_size, positions_after
from sluice.engine.run.batch_size import BatchSize
from sluice.engine.run.broken_readers import require_kept_interface
from sluice.engine.run.clocks import Clocks, clocks_of_run
from sluice.engine.run.compatibility import (
    changed_functions,
    changed_functions_warning,
    require_compatible,
    stores_to_come,
)
from sluice.engine.run.driver_lease import PATIENCE, Lease, Patience, current_lease, this_process
from sluice.engine.run.inherited_answers import inherit_answers
from sluice.engine.run.linger import Linger, News
from sluice.engine.run.published_changes import warnings_of
from sluice.engine.run.query_errors import query_errors
from sluice.engine.run.registry_wait import RegistryWait
from sluice.engine.run.replay import ReplayStep, join_steps
from sluice.engine.run.run_topics import RunTopics
from sluice.engine.run.shard_hosts import require_host_of_shards
from sluice.engine.run.shipped_files import send_to_executors
from sluice.engine.run.standby_upkeep import StandbyCopies
from sluice.engine.run.streaming_query import JobQuery
from sluice.engine.session import FEW_RECORDS, Starting, prepare_for, wait_for_session
from sluice.errors import LeaseError, RegistryAway, SettingsError
from sluice.kafka.replaced_files import ReplacedFiles
from sluice.plan import Job, PlanOf
from sluice.settings import Settings
from sluice.sinks.target import BatchId, Published, TableSink
from sluice.spark_submit import is_local
from sluice.state.ledger.failures import FAILED_KINDS, KINDS
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationInfo, GenerationRef, Snapshot
from sluice.state.shard.addresses import is_file, shown
from sluice.values.shared_topics import shared_topics

log = structlog.get_logger()


@dataclass(frozen=True)
class JobRun:
    """Runs a job on a Spark session, in batches."""

    spark: Starting
    job: Job
    settings: Settings
    generation: int | None = None
    """The generation to write; None for the current one."""
    max_records: int | None = None
    """The maximum number of records in a batch; None if the limit follows from the memory in the
    settings."""
    patience: Patience = PATIENCE
    steps: Sequence[ReplayStep] | None = None
    """For a rebuild, the batches to run. They write no output, because it has already been
    written."""
    plan_without: PlanOf | None = None
    """Plans the pipeline without some stores and steps, which `ChangedStores` computes while runs
    continue."""

    def run(self) -> int:
        """Read, compute and publish all records. Return the number of records read.

        If the pipeline lingers, the run continues until no new records have arrived for
        `linger_ms`.
        """
        with Ledger.open(self.settings.ledger) as ledger:
            return self.run_with(ledger)

    def run_with(self, ledger: Ledger) -> int:
        """Do the same as `run`, but with a ledger that is already open."""
        self._require_host_of_shards(ledger)
        with self._lease(ledger) as lease:
            return self._run_all(ledger, lease)

    def _run_all(self, ledger: Ledger, lease: Lease) -> int:
        storage = Storage.of(self.job, lease.ref.generation, self.settings)
        registry = RegistryWait(self.job, storage.registry, ledger, lease, self.settings.run)
        if self.steps is None:
            registry.begin()
        read, news = 0, True
        while news:
            try:
                count, news = self._run(ledger, lease, storage)
            except _OutrankedError as outranked:
                lease.outrank(outranked.epoch)
                log.warning(
                    "the ledger has lost a newer lease, so this lease gets a higher epoch",
                    epoch=lease.epoch,
                )
                continue
            except _RegistryAwayError as found:
                # A rebuild does not wait here, because its caller repeats the rebuild.
                if self.steps is not None:
                    raise found.away from None
                read += found.read
                registry.wait(found.away, has_read=found.read > 0)
                continue
            read += count
        # A rebuild's generation has no standbys, because readers do not see it yet.
        if self.steps is None:
            StandbyCopies(ledger, lease).refresh()
        return read

    def _require_host_of_shards(self, ledger: Ledger) -> None:
        ledger.require_usable()
        # A rebuild creates new shards, so any host will do.
        if self.steps is not None:
            return
        generation = self.generation
        if generation is None:
            generation = ledger.generations.current_number(self.job.pipeline.name)
        if generation is not None:
            storage = Storage.of(self.job, generation, self.settings).placed(ledger.placements)
            require_host_of_shards(ledger, self.settings.ledger, storage.ref, storage.locations)

    @property
    def linger_ms(self) -> int:
        """How long to wait for new records after all records have been read."""
        if self.steps is not None:
            return 0
        if self.settings.linger_ms is not None:
            return self.settings.linger_ms
        return self.job.pipeline.linger_ms

    def _lease(self, ledger: Ledger) -> AbstractContextManager[Lease]:
        pipeline, holder = self.job.pipeline.name, this_process(self.settings.run)
        # A rebuild writes its new generation, which readers do not see yet, under that generation's
        # own lease. During the rebuild, runs can write the current generation under its lease.
        if self.steps is not None and self.generation is not None:
            ref = GenerationRef(pipeline, self.generation)
            return _lease_of_hidden(ledger, Lease(ledger.leases, ref, holder, self.patience))
        return current_lease(ledger, pipeline, holder, self.patience, self.generation)

    def _run(self, ledger: Ledger, lease: Lease, storage: Storage) -> tuple[int, bool]:
        """Read all records of the partitions that exist now.

        Return the number of records, and whether this function must be called again.

        The next call reads new partitions, and new topics that match a pattern, with new clients.
        """
        job = with_matching_topics(self.job, self.settings.kafka, ledger, storage.ref)
        return replace(self, job=job)._run_present(ledger, lease, replace(storage, job=job))

    def _run_present(self, ledger: Ledger, lease: Lease, storage: Storage) -> tuple[int, bool]:
        """Read all records of the partitions that exist now, in the topics that exist now.

        Return the same as `_run`.
        """
        setup = self._set_up(ledger, lease, storage)
        missing = self._stores_to_come(ledger, setup)
        if missing and self.plan_without is not None:
            log.warning(
                "stores are still being computed",
                pipeline=self.job.pipeline.name,
                without=sorted(missing),
            )
            # Another generation computes the missing stores from the topics. They are added when
            # that generation is promoted.
            planned = self.plan_without(missing)
            job = with_matching_topics(planned, self.settings.kafka, ledger, storage.ref)
            rest = replace(self, job=job, plan_without=None)
            setup = rest._set_up(
                ledger,
                lease,
                Storage.of(rest.job, storage.generation, self.settings),
            )
            return rest._open_and_run(ledger, lease, setup)
        return self._open_and_run(ledger, lease, setup)

    def _set_up(self, ledger: Ledger, lease: Lease, storage: Storage) -> _Setup:
        """Read the ledger and the topics, create missing topics, and build the query.

        Do not open the output yet.
        """
        files = ReplacedFiles(self.settings.kafka)
        identity = SourceIdentity(
            self.settings.kafka,
            ledger.sources,
            storage.ref,
            self.job.topics,
            ledger.audits,
        )
        writer = Writer(storage.ref, self.job.pipeline.markers)
        topics = RunTopics(self.settings.kafka, identity, self._output_identity(writer))
        ids = topics.require_access()
        newest = ledger.snapshots.newest(storage.ref)
        planned = ledger.plans.unpublished(storage.ref)
        firsts = identity.check(
            {} if newest is None else newest.positions, {} if planned is None else planned.ends
        )
        partitions = partition_counts(self.settings.kafka, self.job.topics)
        # Do not silently create a deleted topic again.
        topics.require_never_written(ids)
        output = self._output(writer, partitions)
        clocks = self._clocks(ledger, writer)
        size = BatchSize(self.settings.memory, self.max_records)
        # The steps of a rebuild already determine the sizes of its batches.
        if self.steps is None:
            expect_size(size, self.job, self.settings.kafka, positions_after(newest, firsts))
        # The first comparison takes some milliseconds, while the session is being started.
        clocks.now()
        # Until here, the session was being started in the background. From here on, the run needs
        # it.
        spark = wait_for_session(self.spark)
        if self.job.pipeline.file is not None:
            send_to_executors(spark.sparkContext, self.job.pipeline.file)
        storage = storage.placed(ledger.placements)
        require_reachable(spark.sparkContext.master or "", storage.locations)
        source = KafkaInput(spark, self.settings.kafka)
        query = JobQuery(spark, storage, source, partitions, lease.epoch)
        registered = None if newest is None else ledger.generations.get(storage.ref)
        return _Setup(
            topics,
            newest,
            planned,
            firsts,
            output,
            size,
            source,
            query,
            query.info,
            registered,
            clocks,
            files,
        )

    def _clocks(self, ledger: Ledger, writer: Writer) -> Clocks:
        """Return the clocks of the run.

        The batches of a rebuild have the times at which they first ran.
        """
        if self.steps is not None:
            return Clocks({})
        return clocks_of_run(self.settings.kafka, writer.markers, ledger, self.job.pipeline.name)

    def _output_identity(self, writer: Writer) -> OutputIdentity | None:
        """Return the topics that the run writes; None for a rebuild."""
        if self.steps is not None:
            return None
        dead_letters = self.job.pipeline.dead_letters
        outputs = (*self.job.outputs, dead_letters)
        return OutputIdentity(self.settings.kafka, writer, outputs, dead_letters)

    def _output(self, writer: Writer, partitions: Mapping[str, int]) -> _TopicOutput | None:
        """Return the output of the run, not opened yet.

        Return None for a rebuild, whose output has been written already.

        A rebuild's producer would also fence the producer of a run that is writing meanwhile.
        """
        if self.steps is not None:
            return None
        limits = self._make_topics(partitions, writer)
        group = None
        if self.settings.commit_offsets:
            name = self.job.pipeline.name
            group = ConsumerGroup(self.settings.kafka, name, self.job.topics)
        transaction = TransactionalOutput(self.settings.kafka, writer, limits, group)
        return _TopicOutput(transaction, limits)

    def _stores_to_come(self, ledger: Ledger, setup: _Setup) -> frozenset[str]:
        """Return the stores and steps that this run omits and another generation is computing."""
        if self.plan_without is None or setup.registered is None:
            return frozenset()
        return stores_to_come(ledger, setup.registered, setup.info)

    def _open_and_run(self, ledger: Ledger, lease: Lease, setup: _Setup) -> tuple[int, bool]:
        """Open the output, the shards and the tables, in this order, and run all batches.

        Return the same as `_run`.

        Why this order:

        1. The pipeline is compared with its state before anything is opened, because opening fences
           other drivers.
        2. The output's markers are read before the shards are prepared. The markers say which batch
           was written last, so that a ledger or shards from an older backup are recognized.
        3. The shards are prepared before the tables outside Kafka are opened. If the ledger is
           older than the shards, a shard refuses this driver, before this driver has fenced other
           drivers off from the tables.
        4. The lease is checked after the tables are opened and before the generation is registered.
           Opening the tables fences off every other driver. If this driver no longer holds the
           lease, it has just fenced off its successor, so it must stop.
        """
        query, storage, output = setup.query, setup.query.storage, setup.output
        is_interrupted = setup.newest is not None and setup.planned is not None
        # A rebuild has checked the readers before its start, because its job may be only a part of
        # the pipeline.
        if self.steps is None:
            require_kept_interface(ledger, setup.registered, setup.info, self.job.pipeline)
        require_compatible(setup.registered, setup.info, lambda: is_interrupted)
        with nullcontext() if output is None else output.transaction as transaction:
            written: Batch | None = None
            if transaction is not None:
                transaction.require_newest()
                transaction.require_marker(ledger.audits.newest(storage.ref))
                setup.topics.begin(transaction)
                written = transaction.last
            self._prepare(ledger, lease, storage, written)
            if self.steps is not None:
                inherit_answers(ledger, storage, lease.epoch)
            destinations: Destinations | None = None
            if output is not None:
                destinations = self._destinations(ledger, setup, output)
            lease.require_in_ledger()
            self._register(ledger, setup.registered, setup.info, lease.epoch)
            if transaction is not None:
                transaction.register(setup.info)
            publisher = Publisher(
                storage=storage,
                types=query.written.types,
                ledger=ledger,
                lease=lease,
                identity=setup.topics,
                destinations=destinations,
                auditor=Auditor(
                    storage, self.settings.run, lease.epoch, ledger.audits.newest(storage.ref)
                ),
                newest=setup.newest,
            )
            loop: BatchLoop | None = None
            try:
                with query_errors(storage, lease):
                    loop = BatchLoop(
                        query,
                        publisher,
                        ledger,
                        lease,
                        setup.firsts,
                        setup.size,
                        setup.clocks,
                        setup.newest,
                    )
                    goes_on = self._run_batches(loop, setup)
            except RegistryAway as away:
                raise _RegistryAwayError(away, 0 if loop is None else loop.read) from None
        return loop.read, goes_on

    def _prepare(
        self, ledger: Ledger, lease: Lease, storage: Storage, written: Batch | None
    ) -> None:
        """Prepare the shards, and fence off earlier drivers from them.

        `written`: see `Storage.prepare`.

        Raise _OutrankedError if the ledger has lost a newer lease, for example because a fail-over
        of its database has lost the newest commits. The ledger has lost no published batch, because
        `Storage.prepare` has compared it with the markers.
        """
        try:
            storage.prepare(ledger, written, lease.epoch)
        except LeaseError:
            lease.require_in_ledger()  # Raises LeaseError if this driver has lost its lease.
            raise _OutrankedError(storage.newest_epoch()) from None

    def _run_batches(self, loop: BatchLoop, setup: _Setup) -> bool:
        """Run the steps of a rebuild, or read all records.

        Return whether the run must continue with a new query and new clients: the topics have new
        partitions to read, or files of the clients were replaced.
        """
        if self.steps is None:
            return self._read_all(loop, setup.topics, setup.files) in ("partitions", "certificates")
        prepare_for(
            loop.query.spark, computes_sql=loop.query.written.computes_sql, records=FEW_RECORDS
        )
        stores = loop.query.written.types.stores
        loop.replay(join_steps(self.job, stores, self.steps, loop.firsts, loop.size.most_records()))
        return False

    def _read_all(self, loop: BatchLoop, topics: RunTopics, files: ReplacedFiles) -> News | None:
        """Read all records, and records that arrive while the run lingers.

        Return the last result of `Linger.wait`.
        """
        name = self.job.pipeline.name
        kafka = self.settings.kafka
        ledger = loop.ledger
        lease = loop.lease

        def check() -> None:
            lease.check()
            topics.watch()

        linger = Linger(
            kafka,
            self.job.topics_and_patterns,
            loop.partitions,
            self.linger_ms,
            check,
            loop.clocks,
            files,
            is_paused=lambda: ledger.pauses.of(name) is not None,
        )
        standbys = StandbyCopies(ledger, lease)
        news: News | None = "records"
        with closing(linger):
            while news in ("records", "timers"):
                computes_sql = loop.query.written.computes_sql
                unread = 0
                if computes_sql:
                    unread = linger.unread(ledger.positions(name))
                prepare_for(loop.query.spark, computes_sql=computes_sql, records=unread)
                loop.run_all(kafka)
                # An output may have been deleted after its last check, before the last batch was
                # published.
                topics.check_outputs()
                ledger.failures.clear(name, *FAILED_KINDS, "input", "registry")
                standbys.refresh_if_due()
                news = linger.wait(ledger.positions(name), loop.next_timer)
                if news is None and (pause := ledger.pauses.of(name)) is not None:
                    log.info("run ends, because the pipeline is paused", why=str(pause))
        return news

    def _destinations(self, ledger: Ledger, setup: _Setup, output: _TopicOutput) -> Destinations:
        """Open the tables of the run. Return them and its topics."""
        tables = self._begin_tables(ledger, setup.query.spark, setup.newest)
        return Destinations(
            output.transaction,
            output.limits,
            tables,
            setup.source.headers_at,
        )

    def _begin_tables(
        self,
        ledger: Ledger,
        spark: SparkSession,
        newest: Snapshot | None,
    ) -> Mapping[str, TableSink]:
        """Return the writers of the tables outside Kafka.

        Create or check the tables, and fence off earlier drivers.
        """
        formerly = ledger.renames.former_names(self.job.pipeline.name)
        for former in formerly:
            # Runs under the former name have failed while the file still had that name.
            ledger.failures.clear(former, *KINDS)
        writers = table_sinks(self.job, self.settings, spark, formerly)
        published: Published | None = None
        if writers and newest is not None:
            published = _last_published(ledger, newest)
        for writer in writers.values():
            writer.begin(published)
        return writers

    def _register(
        self,
        ledger: Ledger,
        before: GenerationInfo | None,
        info: GenerationInfo,
        epoch: int,
    ) -> None:
        if before is not None and (changed := changed_functions(before, info)):
            log.warning("functions changed", pipeline=info.pipeline, functions=changed)
            ledger.notes.add(
                info.ref,
                self.settings.run,
                changed_functions_warning(info.pipeline, changed),
            )
        if self.steps is None:
            self._warn_of_changes(ledger, before, info)
        ledger.generations.register(info, hidden=self.steps is not None, epoch=epoch)

    def _warn_of_changes(
        self,
        ledger: Ledger,
        before: GenerationInfo | None,
        info: GenerationInfo,
    ) -> None:
        """Log and record changes of contracts and outputs that the authors may not expect."""
        warnings: list[str] = []
        known: Collection[str] = ()
        if before is not None:
            known = before.outputs
            warnings += warnings_of(before, info)
        if new := info.outputs.keys() - known:
            outputs: dict[str, list[str]] = {}
            for other in (*ledger.generations.all_current(), info):
                outputs[other.pipeline] = [*other.outputs]
            for shared in shared_topics(outputs):
                if shared.topic in new:
                    warnings.append(str(shared))
        for warning in warnings:
            log.warning("pipeline changed", pipeline=info.pipeline, change=warning)
            ledger.notes.add(info.ref, self.settings.run, warning)

    def _make_topics(self, partitions: Mapping[str, int], writer: Writer) -> dict[str, TopicLimits]:
        """Create the missing topics. Return topic → the limits of the records that it accepts."""
        kafka, dead_letters = self.settings.kafka, self.job.pipeline.dead_letters
        widest = max(partitions[source.topic] for source in self.job.streams)
        ensure_topics(kafka, dict.fromkeys(self.job.outputs, widest), {})
        limits = topic_limits(kafka, (*self.job.outputs, *self.job.topics))
        settings = {
            dead_letters: {"max.message.bytes": str(dead_letter_limit(limits))},
            writer.markers: MARKER_SETTINGS,
        }
        # The topic of dead letters must accept dead letters of the largest records that other
        # topics accept.
        ensure_topics(kafka, dict.fromkeys(settings, 1), settings)
        accepted = topic_limits(kafka, [dead_letters])
        for topic in self.job.outputs:
            accepted[topic] = limits[topic]
        return accepted


@dataclass(frozen=True)
class _TopicOutput:
    """The writers of a run's records for topics."""

    transaction: TransactionalOutput
    limits: Mapping[str, TopicLimits]
    """Topic → the limits of the records that it accepts."""


@dataclass(frozen=True)
class _Setup:
    """Everything that a run has read and built before it opens its output."""

    topics: RunTopics
    newest: Snapshot | None
    """The newest published snapshot of the generation."""
    planned: PlannedBatch | None
    """The batch that an interrupted run has planned and not published."""
    firsts: Positions
    output: _TopicOutput | None
    size: BatchSize
    source: KafkaInput
    query: JobQuery
    info: GenerationInfo
    """The generation's description, made from the pipeline as it is now."""
    registered: GenerationInfo | None
    """The generation's description that the last run registered; None if it has no snapshot."""
    clocks: Clocks
    files: ReplacedFiles
    """The files of the run's clients, with their versions before the clients were made."""


@contextmanager
def _lease_of_hidden(ledger: Ledger, lease: Lease) -> Iterator[Lease]:
    """Yield the lease of a generation that is not current.

    Raise LeaseError if the generation was removed meanwhile.

    Without this check, the remaining batches would be written to empty shards. A later removal ends
    the lease.
    """
    with lease:
        if not ledger.sources.get(lease.ref):
            raise LeaseError(
                f"Generation {lease.ref.generation} of {lease.ref.pipeline} was removed by another "
                "command.",
                next_step="Repeat the command.",
            )
        yield lease


def _last_published(ledger: Ledger, snapshot: Snapshot) -> Published:
    """Return a generation's last published batch, which tables outside Kafka must contain."""
    begun = 0
    newest = ledger.history.recent(snapshot.ref, 1)
    if newest and newest[0].number == snapshot.batch:
        begun = newest[0].begun
    audit = ledger.audits.newest(snapshot.ref)
    return Published(
        BatchId(snapshot.generation, snapshot.batch, begun),
        snapshot.outputs,
        snapshot.positions,
        is_written=audit is not None and audit.is_written,
    )


def require_reachable(master: str, locations: Sequence[str]) -> None:
    """Raise SettingsError if a shard is a SQLite file that the executors may be unable to open.

    Only a local Spark is sure to run its tasks on this host, where the files are.
    """
    if is_local(master):
        return
    files = [location for location in locations if is_file(location)]
    if files:
        raise SettingsError(
            f"The executors of {master} cannot open {shown(files[0])}: "
            "only processes on one host can open a SQLite file.",
            next_step="Set SLUICE_SHARDS to a PostgreSQL database, or start a state server for "
            "each worker.",
        )


class _RegistryAwayError(Exception):
    """The schema registry cannot be reached. `read` is the number of records read before."""

    def __init__(self, away: RegistryAway, read: int) -> None:
        super().__init__(away, read)
        self.away = away
        self.read = read


class _OutrankedError(Exception):
    """A shard was written under a newer lease than the ledger's newest, which this driver holds."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch
