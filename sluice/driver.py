"""The driver's program: `driver.py PIPELINE` runs a pipeline until it has read everything.

spark-submit starts this program. `sluice run` starts `commands/driver_with_jvm.py`, which calls
`main`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sluice.engine.starting_jvm import StartedJvm
from sluice.errors import SluiceError
from sluice.provision.supported_versions import check_python, check_spark
from sluice.settings import Settings, masked, settings
from sluice.support.pandas_on_demand import import_pandas_on_demand
from sluice.support.startup import importing
from sluice.values.replay_span import EVERYTHING, Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.engine.starting_jvm import Jvm

REBUILD, FROM_TOPICS, CHANGED_ONLY = "--rebuild", "--from-topics", "--changed-only"
THEN_RUN = "--then-run"
REPLAY, PROMOTE, DROP, ROLL_BACK = "--replay", "--promote", "--drop", "--roll-back"
FROM, UNTIL = "--from=", "--until="
EXPLAIN = "--explain"
CHECK = "--check-executors"
_ACTIONS = (REBUILD, REPLAY, PROMOTE, DROP, ROLL_BACK, EXPLAIN, CHECK)


def reads_records(options: Collection[str]) -> bool:
    """Return whether the program reads records with these options.

    Programs that start a driver call this function: if it returns True, the pipeline must not be
    paused.
    """
    return THEN_RUN in options or not {*options} & {*_ACTIONS}


def main(arguments: list[str], jvm: Jvm = StartedJvm()) -> int:  # noqa: B008 (has no state)
    """Run or rebuild a pipeline. Print errors to standard error, and return the exit status."""
    status = _drive(arguments, jvm)
    # Starting the JVM has imported `sluice.spark_submit`, so this import takes no time.
    from sluice.spark_submit import ARCHIVING, WRITES_ARCHIVE

    # If the JVM writes the archive of Java classes, it does so after this program has ended, and
    # prints nothing.
    if os.environ.get(WRITES_ARCHIVE):
        print(ARCHIVING, flush=True)
    return status


def _drive(arguments: list[str], jvm: Jvm) -> int:
    parsed = _Arguments.parse(arguments)
    if parsed is None:
        print(
            f"usage: driver.py [{' | '.join(_ACTIONS)}] [{CHANGED_ONLY}] [{THEN_RUN}] "
            f"[{FROM_TOPICS}] "
            f"[{FROM}POINT] [{UNTIL}POINT] PIPELINE",
            file=sys.stderr,
        )
        return 2
    try:
        name, action = parsed.pipeline, parsed.action
        span = Span.parse(parsed.begin, parsed.until)
        check_python()
        check_spark()
        with importing():
            import_pandas_on_demand()
            from sluice.engine import task_modules  # noqa: F401
            from sluice.engine.session import jvm_errors
            from sluice.engine.worker_daemon import prepare

        configuration = settings()
        if action == CHECK:
            from sluice.engine.run.executor_check import without_own_daemon

            configuration = without_own_daemon(configuration)
        with prepare(jvm.environment), ThreadPoolExecutor(1) as background:
            # Starting the session takes seconds. Meanwhile, this thread imports and plans.
            spark = background.submit(jvm.session, configuration, f"sluice {name}")
            with jvm_errors(), stopped(spark, jvm):
                if begun_for_command(configuration, name, arguments):
                    parsed.act(spark, span)
    except SluiceError as error:
        print(masked(f"{type(error).title}: {error}"), file=sys.stderr)
        return 1
    # Starting the session has imported `sluice.spark_submit`, so this import takes no time.
    from sluice.spark_submit import FINISHED

    file = os.environ.get(FINISHED)
    if file:
        # The file's folder is gone if no process waits for this driver any more.
        with suppress(OSError):
            Path(file).touch()
    return 0


@contextmanager
def stopped(spark: Future[SparkSession], jvm: Jvm) -> Iterator[None]:
    """Stop the session after the block."""
    try:
        yield
    finally:
        jvm.stop(spark.result())


def begun_for_command(configuration: Settings, name: str, arguments: Collection[str]) -> bool:
    """Record the run in the ledger, if the command that started it has left this to the driver.

    Return False if the command must start another driver. Raise PausedPipeline if the pipeline is
    paused.
    """
    from sluice.values.commanded_run import BEGUN, COMMANDED, DECLINED, CommandedRun

    text = os.environ.pop(COMMANDED, "")
    if not text:
        return True
    import msgspec

    from sluice.state.ledger.run_begins import begin_run
    from sluice.topology import load_pipeline

    commanded = msgspec.json.decode(text, type=CommandedRun)
    definition = load_pipeline(configuration.pipelines, name)
    if definition.needs_delta or str(definition.file) != commanded.file:
        commanded.reply(DECLINED)
        return False
    begin_run(
        configuration,
        name,
        commanded.action,
        commanded.detail,
        reads_records=reads_records(arguments),
    )
    commanded.reply(BEGUN)
    return True


def run(configuration: Settings, spark: Future[SparkSession], name: str) -> None:
    """Run a pipeline until it has read all records."""
    # These imports run while the session starts.
    with importing():
        import structlog

        from sluice.engine.session import jvm_errors
        from sluice.kafka.brokers import require_brokers
        from sluice.observe.run_measurements import measured_run
        from sluice.observe.tracing import traced_run
        from sluice.operations.repair import RepairingRun
        from sluice.plan import Job, explain, load_plan
        from sluice.state.ledger.run_ends import note_failure

    begun = time.monotonic()
    log = structlog.get_logger()
    with (
        within_budgets(configuration, name),
        traced_run(name, configuration.run),
        measured_run(configuration, name) as note_ready,
        note_failure(configuration, name, run=configuration.run),
        naming_owners(configuration),
        jvm_errors(),
    ):
        spark.add_done_callback(lambda _: note_ready())
        planned = load_plan(configuration.pipelines, name)
        print(explain(planned), flush=True)
        # Errors in Kafka's settings are raised here, before the run reads anything.
        require_brokers(configuration.kafka)

        def plan_without(names: Collection[str]) -> Job:
            return load_plan(configuration.pipelines, name, without=names).job

        read = RepairingRun(spark, planned.job, configuration, plan_without).run()
    log.info("run done", pipeline=name, read=read, seconds=round(time.monotonic() - begun, 1))


@contextmanager
def naming_owners(configuration: Settings) -> Iterator[None]:
    """If the block fails because a change breaks readers, add the readers' owners to the error."""
    from sluice.engine.run.broken_readers import BreaksReadersError
    from sluice.topology.loading.pipeline_connections import owner_of

    try:
        yield
    except BreaksReadersError as error:
        raise error.with_owners(partial(owner_of, configuration.pipelines)) from None


@contextmanager
def noting_failure(configuration: Settings, name: str) -> Iterator[None]:
    """If an error ends the action in the block, in a run of Airflow, record it in the ledger.

    Somebody who calls a command sees its error. Nobody sees the error of a run of Airflow, so the
    ledger has it for the page, the alerts and Airflow's task.
    """
    from sluice.state.ledger.run_ends import note_failed_action

    if not configuration.run:
        yield
        return
    with note_failed_action(configuration, name, configuration.run):
        yield


@contextmanager
def within_budgets(configuration: Settings, name: str) -> Iterator[None]:
    """Note after the run in the block whether the pipeline's budgets have been exceeded."""
    try:
        yield
    finally:
        from sluice.observe.budgets import note_budgets
        from sluice.topology.loading.pipeline_connections import allowances_of

        allowances = allowances_of(configuration.pipelines, name)
        if allowances:
            note_budgets(configuration, name, allowances)


def explain_tasks(configuration: Settings, spark: Future[SparkSession], name: str) -> None:
    """Print a pipeline's plan, and the tasks of a run on the session's master."""
    from sluice.engine.run.task_description import describe_tasks
    from sluice.kafka.brokers import require_brokers
    from sluice.plan import explain, load_plan

    planned = load_plan(configuration.pipelines, name)
    require_brokers(configuration.kafka)
    tasks = describe_tasks(spark.result(), planned.job, configuration)
    print(explain(planned), tasks, sep="\n", flush=True)


def check_cluster(configuration: Settings, spark: Future[SparkSession], name: str) -> None:
    """Print the results of the executors' checks. Raise PreflightError if something is wrong."""
    from sluice.engine.run.executor_check import check_executors
    from sluice.plan import load_plan

    job = load_plan(configuration.pipelines, name).job
    print(check_executors(spark.result(), job, configuration), flush=True)


def rebuild(
    configuration: Settings,
    spark: Future[SparkSession],
    name: str,
    action: str = REBUILD,
    span: Span = EVERYTHING,
    *,
    from_topics: bool = False,
) -> None:
    """Rebuild a pipeline's state from its topics, or do the `action` of a replay.

    A replay builds, promotes or drops a generation beside the current generation, and a rollback
    makes an earlier generation current again.
    """
    from sluice.kafka.brokers import require_brokers
    from sluice.operations.rebuild import Rebuild, drop_built
    from sluice.operations.rollback import roll_back
    from sluice.plan import load_plan

    job = load_plan(configuration.pipelines, name).job
    if action == DROP:
        drop_built(job, configuration)
        return
    require_brokers(configuration.kafka)
    rebuilding = Rebuild(spark.result(), job, configuration, from_topics)
    actions: Mapping[str, Callable[[], int]] = {
        REBUILD: rebuilding.run,
        REPLAY: partial(rebuilding.replay, span),
        PROMOTE: rebuilding.promote,
        ROLL_BACK: partial(roll_back, rebuilding),
    }
    actions[action]()
    if action == REBUILD and from_topics:
        # A topic that was created again has records that no generation has read. A rebuild writes
        # no output, so a run has to read these records.
        run(configuration, spark, name)


def rebuild_changed(
    configuration: Settings,
    spark: Future[SparkSession],
    name: str,
    *,
    from_topics: bool = False,
) -> None:
    """Compute a pipeline's changed stores from its topics. Keep the state of the other stores."""
    from sluice.kafka.brokers import require_brokers
    from sluice.operations.changed_stores import ChangedStores
    from sluice.plan import Job, load_plan

    job = load_plan(configuration.pipelines, name).job
    require_brokers(configuration.kafka)

    def part_of(only: Collection[str]) -> Job:
        return load_plan(configuration.pipelines, name, only).job

    ChangedStores(spark.result(), job, part_of, configuration, from_topics).run()


@dataclass
class _Arguments:
    """The arguments of the program."""

    pipeline: str = ""
    action: str = ""
    """The action; empty for a run."""
    options: set[str] = field(default_factory=set)
    begin: str = ""
    until: str = ""

    @classmethod
    def parse(cls, arguments: Iterable[str]) -> Self | None:
        """Parse the arguments. Return None if their combination is not valid."""
        parsed = cls()
        names: list[str] = []
        actions: list[str] = []
        has_points = False
        for argument in arguments:
            if not argument.startswith("-"):
                names.append(argument)
            elif argument.startswith(FROM):
                has_points, parsed.begin = True, argument.removeprefix(FROM)
            elif argument.startswith(UNTIL):
                has_points, parsed.until = True, argument.removeprefix(UNTIL)
            elif argument in _ACTIONS:
                actions.append(argument)
            elif argument in (FROM_TOPICS, CHANGED_ONLY, THEN_RUN):
                parsed.options.add(argument)
            else:
                return None
        if has_points and actions != [REPLAY]:
            return None
        if CHANGED_ONLY in parsed.options and actions != [REBUILD]:
            return None
        if THEN_RUN in parsed.options and CHANGED_ONLY not in parsed.options:
            return None
        if len(names) != 1 or len(actions) > 1:
            return None
        parsed.pipeline = names[0]
        parsed.action = actions[0] if actions else ""
        return parsed

    def act(self, spark: Future[SparkSession], span: Span) -> None:
        """Carry out the action that the arguments name."""
        name, from_topics = self.pipeline, FROM_TOPICS in self.options
        if self.action == EXPLAIN:
            explain_tasks(settings(), spark, name)
        elif self.action == CHECK:
            check_cluster(settings(), spark, name)
        elif CHANGED_ONLY in self.options:
            with noting_failure(settings(), name), naming_owners(settings()):
                rebuild_changed(settings(), spark, name, from_topics=from_topics)
            if THEN_RUN in self.options:
                run(settings(), spark, name)
        elif self.action:
            with noting_failure(settings(), name), naming_owners(settings()):
                rebuild(settings(), spark, name, self.action, span, from_topics=from_topics)
        else:
            run(settings(), spark, name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
