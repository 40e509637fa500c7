"""The Spark session of a run. Its memory: see `values/run_memory.py`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from py4j import protocol  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas import functions
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from sluice.errors import EngineError, SettingsError, sentence
from sluice.provision.machine_checks import find_java
from sluice.settings import Settings
from sluice.spark_releases import CHECKPOINT_FILES

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "sluice.engine.worker_daemon",
    # With this setting, Spark's error contains a function's traceback if the function crashes
    # Python.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    # The largest possible limit switches the limit off. Otherwise, Spark would compute the batch's
    # size after every row, which takes longer than writing the row.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.streaming.metricsEnabled": "false",
    # By default, each session initializes the functions of Spark's ML library, because the
    # library's jar registers them as an extension. This takes a second of CPU time. Extensions in
    # `spark.sql.extensions` are used with and without this setting.
    "spark.sql.extensions.test.loadFromCp": "false",
    # By default, Spark keeps the plans and metrics of the newest 1,000 queries, stages and jobs for
    # its web page, which takes tens of MB of memory.
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    # The files of a query's shuffles are deleted when the JVM has collected the query as garbage.
    # By default, Spark asks for a full collection only every 30 minutes, and a lingering run may
    # cause none before.
    "spark.cleaner.periodicGC.interval": "5min",
    # By default, each query starts more threads in these pools, up to 1,024. A
    # thread ends after an idle minute.
    "spark.sql.shuffleExchange.maxThreadThreshold": "32",
    "spark.sql.resultQueryStage.maxThreadThreshold": "32",
    # The checkpoint is in local files. By default, Spark starts the program `readlink` four times
    # to rename a file, 24 times per batch.
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    # Spark would limit the bytes of a batch's results, which include the output records. This limit
    # is switched off, because the batch's size follows from SLUICE_MEMORY instead.
    "spark.driver.maxResultSize": "0",
}

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings that make Spark interpret a query's expressions, instead of generating and compiling
Java code for them."""
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
_ROWS_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The maximum number of rows that Spark hands to Python, or gets from Python, at once."""
_RECORDS, _ROW_BATCHES = {_ROWS_AT_ONCE: "20000"}, {_ROWS_AT_ONCE: "4"}
"""The settings for rows that are records, and for rows that are row batches. Each row batch has
thousands of rows."""
_CLASSES = ("PythonSQLUtils", "PythonUtils", "SimplePythonFunction", "functions")

FEW_RECORDS = 50_000
"""A query that reads fewer records than this does not compile its expressions, because compiling
would take longer than it saves."""


Starting: TypeAlias = "SparkSession | Future[SparkSession]"
"""A session, or a session that is still being started: a run can already read Kafka and the ledger
meanwhile."""


def wait_for_session(spark: Starting) -> SparkSession:
    """Return the session, after waiting for its start."""
    return spark.result() if isinstance(spark, Future) else spark


def let_jvm_end(spark: SparkContext) -> None:
    """Keep PySpark and py4j from printing tracebacks when the JVM ends.

    `jvm_errors` reports the end of the JVM.
    """
    server: Any = spark._accumulatorServer

    class Updates(server.RequestHandlerClass):  # type: ignore[misc]
        """Receives updates of accumulators from the JVM, until the JVM closes the connection."""

        def handle(self) -> None:
            # If the JVM ends, PySpark's handler raises an error, and its server prints a traceback.
            with suppress(EOFError, ConnectionError):
                super().handle()

    server.RequestHandlerClass = Updates
    # py4j logs its errors with the root logger.
    logging.getLogger().addFilter(_is_no_lost_connection)


def stop(spark: SparkSession) -> None:
    """Stop Spark's session in a process that is shutting down.

    Does not wait for PySpark's accumulator server, which ends with the process: this server checks
    only once a second whether it must stop.
    """
    context: Any = spark.sparkContext
    context._accumulatorServer = None
    spark.stop()


def _is_no_lost_connection(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], Py4JNetworkError)


_OF_OLDER_JAVA = "getSubject is not supported"
"""The error of Hadoop in Spark 4.0 on Java 24 and newer."""


@contextmanager
def settings_errors() -> Iterator[None]:
    """Raise SettingsError if Spark refuses its settings in the block."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        cause = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        first_line, _, _ = str(cause).strip().partition("\n")
        next_step = (
            "Correct SLUICE_SPARK_CONF. If Java has printed an error above, look there for the "
            "wrong setting, or for a module that this Java lacks."
        )
        if _OF_OLDER_JAVA in first_line:
            next_step = "This Spark needs an older Java: set JAVA_HOME to Java 17 or 21."
        raise SettingsError(
            f"Spark does not start: {sentence(first_line)}", next_step=next_step
        ) from None


@contextmanager
def jvm_errors() -> Iterator[None]:
    """Raise EngineError if the driver's JVM ends in the block."""
    try:
        yield
    # py4j raises a ConnectionError if it opens another connection to a JVM that is gone.
    except (Py4JNetworkError, ConnectionError) as error:
        raise EngineError(
            "The driver's JVM has ended.",
            next_step="The JVM was killed or ran out of memory: see the logs of the driver's "
            "host. The next run repeats the batch.",
        ) from error


def session(settings: Settings, name: str) -> SparkSession:
    """Create the Spark session.

    Its `configuration` takes precedence over the settings of spark-submit.

    Raises PreflightError if Java is missing, and SettingsError if Spark refuses its settings.
    """
    # In a process that spark-submit has not started, PySpark starts Java. If Java is missing,
    # PySpark's error is hard to understand, so `find_java` looks for Java first.
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        find_java()
    prepare_pyspark()
    builder = SparkSession.builder.appName(name)
    for key, value in configuration(settings).items():
        builder = builder.config(key, value)
    with settings_errors():
        spark = set_up(builder.getOrCreate(), settings)
    spark.sparkContext.setLogLevel("WARN")
    return spark


def prepare_pyspark() -> None:
    """Prepare PySpark in a process that has no session yet."""
    # Python workers must use this interpreter, not the first `python3` on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _use_no_pandas()


def set_up(spark: SparkSession, settings: Settings) -> SparkSession:
    """Set up a session that has just been created. Return the session."""
    let_jvm_end(spark.sparkContext)
    # Spark checks a setting's value only when it is set, not when a session is built with it. So
    # set each setting again.
    for key in filter(spark.conf.isModifiable, settings.spark_conf):
        value = str(spark.conf.get(key))
        spark.conf.set(key, value)
    _remember_classes(spark)
    return spark


def configuration(settings: Settings) -> dict[str, Any]:
    """Return the session's settings: SLUICE_SPARK_CONF, and `DEFAULTS` for all others."""
    return {**DEFAULTS, **settings.spark_conf}


def _use_no_pandas() -> None:
    """Keep PySpark from importing pandas, its tests and their libraries, which takes 0.25 s.

    PySpark imports pandas even if a function takes Arrow batches. It also imports one of its test
    modules to find out whether an argument of a JVM method is a NumPy value, but Sluice never
    passes such values.
    """
    vars(functions)["require_minimum_pandas_version"] = lambda: None
    of_numpy = (NumpyArrayConverter, NumpyScalarConverter)
    converters = [each for each in protocol.INPUT_CONVERTER if not isinstance(each, of_numpy)]
    protocol.INPUT_CONVERTER[:] = converters


def _remember_classes(spark: SparkSession) -> None:
    """Look up, once, the classes that PySpark names without their packages.

    Without this, py4j would look up the classes for every column, and would search all jars each
    time.
    """
    jvm: Any = spark.sparkContext._jvm
    for name in _CLASSES:
        setattr(jvm, name, getattr(jvm, name))


def prepare_for(spark: SparkSession, *, computes_sql: bool, records: int) -> None:
    """Choose the settings for later queries that read about this number of records.

    `computes_sql`: whether Spark computes expressions of each record, which it compiles if there
    are many records. If not, Spark only carries row batches between tasks.

    Settings of spark-submit or SLUICE_SPARK_CONF take precedence.
    """
    chosen = INTERPRETED | _ROW_BATCHES
    if computes_sql:
        chosen = (INTERPRETED if records < FEW_RECORDS else COMPILED) | _RECORDS
    # Not `getConf`: it would copy all settings, with several calls of the JVM for each.
    configured = spark.sparkContext._conf
    for name, value in chosen.items():
        if not configured.contains(name):
            spark.conf.set(name, value)


def close_idle_callbacks(spark: SparkSession) -> None:
    """Close the idle connections through which Spark's threads have called this process.

    For each of the JVM's threads that calls Python, py4j opens a connection, which a Python thread
    serves. py4j can clean such connections up, but never does so for pinned threads. Each streaming
    query has its own thread, so a run with many queries would have ever more connections, threads,
    and memory of these threads.
    """
    gateway: Any = spark.sparkContext._gateway
    gateway.java_gateway_server.getCallbackClient().periodicCleanup()
