"""Checks that Spark can run a pipeline and that its state is compatible, without any records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.storage import Storage
from sluice.engine.run.compatibility import (
    changed_functions,
    changed_functions_warning,
    require_compatible,
)
from sluice.engine.run.published_changes import warnings_of
from sluice.engine.run.streaming_query import JobQuery
from sluice.engine.session import session, stop
from sluice.errors import EngineError, SluiceError, TopologyError
from sluice.plan import Job, Plan
from sluice.provision.machine_checks import LOOPBACK
from sluice.settings import Settings
from sluice.spark_submit import QUIET_JVM, without_noise
from sluice.state.ledger.ledger import Ledger

_RECORD = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers STRING, sequence BIGINT"
)


@dataclass(frozen=True)
class NoRecords:
    """An input of empty topics."""

    spark: SparkSession
    interleaved = False

    def read(
        self, partitions: Mapping[str, int], task: Chain, columns: StructType | str
    ) -> DataFrame:
        return self.spark.createDataFrame([], _RECORD).mapInArrow(Chain((task,)).__call__, columns)


@dataclass(frozen=True)
class Findings:
    """The results of a check, by pipeline.

    An error is a TopologyError for an expression that Spark cannot resolve, or a CompatibilityError
    for an incompatible change. A warning describes a compatible change that may alter the meaning
    of the state.
    """

    errors: dict[str, SluiceError] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)


def check(settings: Settings, planned: Sequence[Plan]) -> Findings:
    """Let Spark resolve every expression, and compare the pipelines with their state."""
    findings = Findings()
    local_conf = {
        "spark.master": "local[1]",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": " ".join(QUIET_JVM),
    }
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    with without_noise():
        spark = session(
            replace(settings, spark_conf={**local_conf, **settings.spark_conf}),
            "sluice check",
        )
    try:
        with Ledger.open(settings.ledger) as ledger:
            for plan in planned:
                try:
                    if warning := check_job(spark, plan.job, settings, ledger):
                        findings.warnings[plan.pipeline.name] = warning
                # An error in one pipeline must not hide the errors of others.
                except (TopologyError, EngineError) as error:
                    findings.errors[plan.pipeline.name] = error
    finally:
        stop(spark)
    return findings


def check_job(spark: SparkSession, job: Job, settings: Settings, ledger: Ledger) -> str:
    """Check a job against Spark and its stored state. Return warnings, one per line."""
    name = job.pipeline.name
    storage = Storage.of(job, ledger.generations.current_number(name) or 1, settings)
    source = NoRecords(spark)
    query = JobQuery(spark, storage, source, dict.fromkeys(job.topics, 1), checked=True)
    query.check_changes()
    if ledger.snapshots.newest(storage.ref) is None:
        return ""
    before, now = ledger.generations.get(storage.ref), query.info
    require_compatible(before, now, lambda: ledger.plans.unpublished(storage.ref) is not None)
    warnings: list[str] = []
    if changed := changed_functions(before, now):
        warnings.append(changed_functions_warning(name, changed))
    if before is not None:
        warnings += warnings_of(before, now)
    return "\n".join(warnings)
