"""The operator that runs a pipeline with spark-submit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, get_current_context
from confluent_kafka import KafkaException

from sluice.airflow_connections import (
    KAFKA,
    SPARK,
    database_url,
    kafka_config,
    registry_or_settings,
    spark_master,
)
from sluice.airflow_releases import (
    HAS_RETRY_POLICIES,
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    send_gauge,
)
from sluice.driver import reads_records
from sluice.errors import (
    BrokersUnreachable,
    EngineError,
    PreflightError,
    QueryError,
    SettingsError,
    SluiceError,
)
from sluice.kafka.brokers import require_brokers, silent_admin
from sluice.kafka.unread_records import Lag, read_lag
from sluice.observe.metrics import gauges, shard_sizes
from sluice.observe.monitoring import LedgerFigures, run_figures
from sluice.observe.tracing import trace_context
from sluice.orchestration.dag_facts import AnnouncedStore
from sluice.orchestration.driver_log import log_at_levels, log_lines
from sluice.orchestration.repetition import AttemptEnded, Repetition, run_name
from sluice.orchestration.window_events import announce_windows, assets_of
from sluice.settings import OFF, Settings, settings
from sluice.spark_submit import (
    APPLICATION,
    UNFINISHED,
    deploy_mode_error,
    submission,
)
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.measurements import Measurement
from sluice.state.ledger.pauses import Pause
from sluice.state.ledger.run_ends import note_killed, now
from sluice.topology.loading.run_options import DEFAULTS, RunOptions
from sluice.values.replay_span import LONGEST_POINT, Span
from sluice.values.sink_tables import connection_variable
from sluice.warm.client import LOST, NO_DRIVER, DriverLost, WarmRun, warm_run

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from sluice.orchestration.lineage import Lineage


ACTIONS = {
    "run": (),
    "replay": ("--replay",),
    "promote": ("--promote",),
    "drop": ("--drop",),
    "roll_back": ("--roll-back",),
    "change": ("--rebuild", "--changed-only", "--then-run"),
}
"""Action of a run → the program's options."""
LIMITS = {"max_records": (1, 100_000_000), "linger_seconds": (0, 3_600)}
"""Parameter of a run → its smallest and largest value."""
POINTS = ("from", "until")
"""The parameters that say where a replay begins and ends."""

_PAUSED_SECONDS, _WAITS_WHILE_PAUSED = 5.0, 60
"""How often the task of a paused continuous pipeline checks whether the pipeline was resumed, and
how many times before the task ends."""


class SluiceOperator(SparkSubmitOperator):
    """Submits a pipeline, with the Spark master and the Kafka settings of Airflow connections.

    `databases` are the connections of the databases whose tables the pipeline writes. If Airflow
    does not have such a connection, the driver reads the environment variable
    `SLUICE_CONNECTION_NAME`, where `NAME` is the connection's name in capital letters.

    `options` say how much memory the run may use, which Spark settings it has, and which Airflow
    connection has the Spark master. `announced` are the stores whose closed windows get an event.
    `continuous` says that Airflow starts a run when the last one has ended.

    Only these parameters of a run are used: `action` (one of `ACTIONS`), the parameters in `LIMITS`
    and, for a replay, `from` and `until`.
    """

    template_fields: Sequence[str] = ()

    def __init__(
        self,
        *,
        pipeline: str,
        kafka_conn_id: str | None = None,
        databases: Sequence[str] = (),
        delta: bool = False,
        options: RunOptions = DEFAULTS,
        announced: Sequence[AnnouncedStore] = (),
        conn_id: str | None = None,
        continuous: bool = False,
        **kwargs: Any,
    ) -> None:
        policy = {"retry_policy": Repetition(pipeline)} if HAS_RETRY_POLICIES else {}
        super().__init__(
            application=str(APPLICATION),
            application_args=[pipeline],
            name=f"sluice.{pipeline}",
            conn_id=conn_id or options.spark_connection or SPARK,
            **policy | kwargs,
        )
        self.kafka_conn_id = kafka_conn_id or options.kafka_connection or KAFKA
        self.databases = databases
        self.delta = delta
        self.options = options
        self.announced = announced
        self.pipeline = pipeline
        self.continuous = continuous
        self._is_ended = False
        self._warm_run: WarmRun | None = None

    def on_kill(self) -> None:
        """End the driver when Airflow ends the task, for example after a user marked it failed."""
        self._is_ended = True
        if self._warm_run is not None:
            self._warm_run.end()
        super().on_kill()

    def execute(self, context: Context) -> None:
        """Submit the pipeline and wait until it has read everything.

        A wrong configuration fails without retries.
        """
        started_at = now()
        self._skip_if_paused(context)
        self._count_retry(context)
        arguments = [*_options(context), self.pipeline]
        configuration = self.options.applied_to(_settings(context))
        try:
            master = spark_master(self._conn_id)
            _require_provider_of(master)
            if self._deploy_mode == "cluster":
                raise deploy_mode_error("The operator sets deploy_mode to cluster")
            kafka = kafka_config(self.kafka_conn_id)
            configuration = replace(
                configuration, registry=registry_or_settings(), shards=self._shards(configuration)
            )
            libraries = self.options.libraries(configuration.home)
            if libraries is not None:
                configuration = replace(
                    configuration, libraries=libraries.build(partial(self.log.info, "%s"))
                )
            urls = {
                connection_variable(name): url for name, url in self._database_urls().items() if url
            }
            variables = urls | {"SLUICE_RUN": run_name(context)} | trace_context()
            if not self._run_warm(configuration, kafka, master, arguments, variables):
                with submission(
                    configuration, kafka, master, arguments, delta=self.delta
                ) as submitted:
                    require_brokers(kafka)
                    self.application_args = arguments
                    self.jars = submitted.jars
                    self.files = submitted.files
                    self.driver_class_path = submitted.driver_class_path
                    self.conf = dict(submitted.conf)
                    # The parameter env_vars is not used, because the hook turns it into arguments
                    # for some masters.
                    with _added_to_environment(submitted.environment | variables):
                        super().execute(context)
                    if not submitted.is_finished:
                        raise AirflowException(UNFINISHED)
            self._report(context, kafka)
            self._announce_windows(context)
        except (SettingsError, PreflightError) as error:
            # A retry cannot repair a wrong setting or an unfit machine, so the task fails at once.
            self._note_failure(context, started_at, error)
            raise AirflowFailException(str(error)) from None
        except BrokersUnreachable as error:
            # A retry may reach the brokers again.
            self._note_failure(context, started_at, error)
            raise AirflowException(str(error)) from None
        except Exception as error:
            if self._is_ended:
                self._note_ended(context)
                raise AttemptEnded("Airflow ended the run.") from None
            # The error of Airflow's hook quotes the whole command and log, so the error that the
            # driver has recorded in the ledger replaces it.
            recorded = self._recorded_error(started_at)
            silent = EngineError(
                "The driver ended without an error message.", next_step="See the task's log."
            )
            self._note_failure(context, started_at, silent)
            raise recorded or error from None
        except BaseException:
            # Some errors are not subclasses of `Exception`, such as AirflowTaskTimeout, which
            # Airflow raises in a task that exceeds its time limit.
            self._note_ended(context)
            raise

    def _skip_if_paused(self, context: Context) -> None:
        """Skip the task, without failing it, if somebody has paused the pipeline.

        A pipeline that runs continuously would be started again at once, so its task waits a while.
        """
        action = (context.get("params") or {}).get("action", "run")
        # An unknown action fails later, with an error that names it.
        if action not in [*ACTIONS] or not reads_records(ACTIONS[action]):
            return
        waits = _WAITS_WHILE_PAUSED if self.continuous else 1
        pause: Pause | None = None
        for attempt in range(waits):
            # If the ledger does not answer, the run itself reports that.
            with suppress(SluiceError, OSError), Ledger.open(settings().ledger) as ledger:
                pause = ledger.pauses.of(self.pipeline)
            if pause is None:
                return
            if attempt == 0:
                self.log.warning("%s is %s. Nothing is read.", self.pipeline, pause)
            if waits > 1:
                time.sleep(_PAUSED_SECONDS)
        raise AirflowSkipException(f"{self.pipeline} is {pause}")

    def _run_warm(
        self,
        configuration: Settings,
        kafka: Mapping[str, str],
        master: str,
        arguments: Sequence[str],
        variables: Mapping[str, str],
    ) -> bool:
        """Run the pipeline on a warm driver.

        Return False if no driver takes the run, or if the driver is lost. Raise AirflowException if
        the run fails.
        """
        with warm_run(
            configuration,
            kafka,
            master,
            arguments,
            delta=self.delta,
            variables=variables,
            is_piped=True,
        ) as run:
            if run is None:
                if configuration.warm != OFF:
                    self.log.info(NO_DRIVER)
                return False
            self._warm_run = run
            self.log.info("The run uses a warm driver.")
            log_lines(self.log, run.lines())
            try:
                status = run.wait()
            except DriverLost:
                if self._is_ended:
                    raise
                self.log.warning(LOST)
                return False
            if status:
                raise AirflowException(f"The driver ended with status {status}.")
            if not run.is_finished:
                raise AirflowException(UNFINISHED)
        return True

    def _shards(self, configuration: Settings) -> str:
        """Return the address for the pipeline's shards.

        Raise SettingsError if neither Airflow nor the environment has its connection.
        """
        connection = self.options.shards_connection
        if connection is None:
            return configuration.shards
        address = database_url(connection)
        if address:
            return address
        alone = RunOptions(shards_connection=connection)
        return alone.with_connections(configuration).shards

    def _database_urls(self) -> dict[str, str | None]:
        """Return each connection's database URL; None or empty if Airflow lacks the connection."""
        return {name: database_url(name) for name in self.databases}

    def get_openlineage_facets_on_start(self) -> Lineage:
        """Return the datasets that the run reads and writes.

        Airflow's OpenLineage provider calls this method.
        """
        return self._lineage(get_current_context())

    def get_openlineage_facets_on_complete(self, task_instance: RuntimeTaskInstance) -> Lineage:
        """Return the run's datasets and audit. A failed run may have published some batches."""
        return self._lineage(task_instance.get_template_context())

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    def _lineage(self, context: Context) -> Lineage:
        # Airflow's OpenLineage provider is optional, so it is imported only when Airflow asks for
        # lineage.
        from sluice.orchestration.lineage import lineage

        action = (context.get("params") or {}).get("action", "run")
        databases: dict[str, str] = {}
        for name, url in self._database_urls().items():
            address = url or os.environ.get(connection_variable(name))
            if address:
                databases[name] = address
        return lineage(
            self.pipeline,
            action,
            run_name(context),
            kafka_config(self.kafka_conn_id),
            settings(),
            databases,
        )

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        log_at_levels(hook)
        return hook

    def _report(self, context: Context, kafka: Mapping[str, str]) -> None:
        """Send the pipeline's gauges to Airflow's metrics.

        The run's counts are added to the events of its assets. An error here does not fail a run
        that has succeeded.
        """
        try:
            with Ledger.open(settings().ledger) as ledger:
                figures_of_all = LedgerFigures.read(ledger)
                lag, sizes = _lag(ledger, self.pipeline, kafka), shard_sizes(figures_of_all)
                for gauge in gauges(figures_of_all, self.pipeline, lag, sizes=sizes):
                    tags = {"pipeline": self.pipeline, **dict(gauge.labels)}
                    send_gauge(f"sluice.{gauge.name}", float(gauge.value), tags)
                figures = run_figures(ledger, self.pipeline, run_name(context))
            # `outlet_events` is falsy until an asset has been looked up in it, so compare it with
            # None.
            events: Any = context.get("outlet_events")
            of_windows = self._window_assets
            for asset in self.outlets if events is not None else ():
                if asset not in of_windows:
                    events[asset].extra.update(figures)
        except Exception as error:
            self.log.warning("The run's metrics were not reported: %s", error)

    @property
    def _window_assets(self) -> list[Asset]:
        return assets_of(self.pipeline, self.announced)

    def _announce_windows(self, context: Context) -> None:
        """Add the events of closed windows. An error here does not fail a run that has succeeded.

        The next run then announces the windows.
        """
        if not self.announced:
            return
        try:
            with Ledger.open(settings().ledger) as ledger:
                silent = announce_windows(context, ledger, self.pipeline, self.announced)
        except Exception as error:
            silent = self._window_assets
            self.log.warning(
                "Closed windows were not announced; the next run announces them: %s", error
            )
        # Airflow registers an event for each outlet of the task, whether or not a window has
        # closed.
        self.outlets = [asset for asset in self.outlets if asset not in silent]

    def _count_retry(self, context: Context) -> None:
        if getattr(context["ti"], "try_number", 1) < 2:
            return
        with suppress(SluiceError, OSError), Ledger.open(settings().ledger) as ledger:
            ledger.measurements.add(self.pipeline, [Measurement("run_retries_total", 1)])

    def _recorded_error(self, started_at: datetime) -> AirflowException | None:
        """Return the driver's error, with the next step first.

        Return None if the ledger has no error since the run's start.

        If the same run would fail again, returns an exception after which Airflow does not retry
        the task.
        """
        try:
            with Ledger.open(settings().ledger) as ledger:
                failures = {failure.kind: failure for failure in ledger.failures.of(self.pipeline)}
        except (SluiceError, OSError):
            return None
        failure = failures.get("run") or failures.get("registry")
        if failure is None or failure.seen_at < started_at:
            return None
        next_step = f"{failure.next_step}\n" if failure.next_step else ""
        text = f"{next_step}{failure.title}: {failure.detail}"
        return AirflowFailException(text) if failure.is_lasting else AirflowException(text)

    def _note_ended(self, context: Context) -> None:
        # If an earlier attempt has recorded an error, that error says more, so it is kept.
        self._note_failure(context, None, EngineError("Airflow ended the run."))

    def _note_failure(
        self, context: Context, started_at: datetime | None, error: SluiceError
    ) -> None:
        note_killed(settings(), self.pipeline, run_name(context), started_at, error)


def _require_provider_of(master: str) -> None:
    """Raise PreflightError if Airflow's Spark provider cannot use a Kubernetes master."""
    if not master.startswith("k8s"):
        return
    try:
        is_there = find_spec("airflow.providers.cncf.kubernetes") is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        # The provider's own error would be a NameError.
        raise PreflightError(
            f"For the master {master}, Airflow's Spark provider needs Airflow's Kubernetes "
            "provider.",
            next_step="Run: pip install apache-airflow-providers-cncf-kubernetes, with Airflow's "
            "constraints, on the Airflow workers.",
        )


def _options(context: Context) -> tuple[str, ...]:
    """Return the program's options for the run's action.

    Fails the task without retries if the action is unknown, or if the start or end of a replay is
    invalid.
    """
    parameters = context.get("params") or {}
    action = parameters.get("action", "run")
    if not isinstance(action, str) or action not in ACTIONS:
        raise AirflowFailException(f"The run's action is not one of {', '.join(ACTIONS)}.")
    points = {name: parameters[name] for name in POINTS if parameters.get(name)}
    if not all(isinstance(text, str) and len(text) <= LONGEST_POINT for text in points.values()):
        raise AirflowFailException(
            f"The run's parameters {' and '.join(points)} must be text of at most "
            f"{LONGEST_POINT:,} characters."
        )
    if points and action != "replay":
        raise AirflowFailException(f"Only a replay takes {' and '.join(points)}.")
    try:
        Span.parse(points.get("from"), points.get("until"))
    except QueryError as error:
        raise AirflowFailException(str(error)) from None
    return (*ACTIONS[action], *(f"--{name}={text}" for name, text in points.items()))


def _settings(context: Context) -> Settings:
    """Return the settings, changed by the run's parameters.

    Fails the task without retries if a parameter is outside its limits.
    """
    parameters = context.get("params") or {}
    for name, (least, most) in LIMITS.items():
        value = parameters.get(name)
        # A bool is an int in Python, but not a number to Airflow's form.
        if value is not None and not (type(value) is int and least <= value <= most):
            raise AirflowFailException(
                f"The run's {name} is not a whole number from {least:,} to {most:,}."
            )
    configuration = settings()
    if parameters.get("linger_seconds") is not None:
        configuration = replace(configuration, linger_ms=parameters["linger_seconds"] * 1_000)
    if parameters.get("max_records") is not None:
        configuration = replace(configuration, max_records=parameters["max_records"])
    return configuration


def _lag(ledger: Ledger, pipeline: str, kafka: Mapping[str, str]) -> Lag | None:
    positions = ledger.positions(pipeline)
    try:
        return read_lag(silent_admin(kafka), positions, positions)
    except (KafkaException, TimeoutError):
        return None


@contextmanager
def _added_to_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process during the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
