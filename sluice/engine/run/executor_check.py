"""Checks the executors of a cluster before a run needs them, for `sluice check --master`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from sluice.engine.batch.storage import Storage
from sluice.engine.executor_probe import Finding, Probe, Report
from sluice.engine.run.job_run import require_reachable
from sluice.errors import PreflightError, SluiceError
from sluice.kafka.brokers import with_certificates
from sluice.plan import Job
from sluice.settings import Settings, masked
from sluice.spark_submit import is_local
from sluice.state.ledger.ledger import Ledger
from sluice.state.postgres_checks import require_usable_shards
from sluice.state.shard.addresses import is_remote, shown
from sluice.values.phrases import counted

PACKAGES = (
    "confluent-kafka",
    "msgspec",
    "numpy",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
    "sqlglot",
    "structlog",
)
"""The packages that tasks import."""
_JOIN_SECONDS = 3.0
"""How long to wait for further executors after the first executor has started."""
_CLOCK_SECONDS = 5.0
_ERROR = re.compile(r"^\s*(?:[\w.]*\.)?(\w*(?:Error|Exception): .*)$", re.MULTILINE)
"""Matches the last line of a Python traceback in the text of a Spark error."""


def without_own_daemon(settings: Settings) -> Settings:
    """Return the settings with Spark's own Python daemon.

    Sluice's daemon imports everything that tasks need. If a package were missing, Sluice's daemon
    could not start, and could not name the package.
    """
    spark_conf = settings.spark_conf | {"spark.python.daemon.module": "pyspark.daemon"}
    return replace(settings, spark_conf=spark_conf)


def check_executors(spark: SparkSession, job: Job, settings: Settings) -> str:
    """Check all executors, and return a table of the checks.

    Raise PreflightError, with the table, if a check fails.
    """
    master = spark.sparkContext.master or ""
    with Ledger.open(settings.ledger) as ledger:
        generation = ledger.generations.current_number(job.pipeline.name) or 1
        storage = Storage.of(job, generation, settings).placed(ledger.placements)
    findings = [Finding("driver", "ledger", shown(settings.ledger)), _shards(master, storage)]
    probe = _probe(storage, settings)
    try:
        findings += _reports(spark, probe)
    except Exception as error:
        # Any error that keeps tasks from running is a finding, too. The errors of PySpark and of
        # py4j have the error of the executor's Python in their text.
        findings.append(Finding("executors", "tasks", "", _reason(str(error))))
    table = "\n".join(_lines(master, findings))
    failed = sum(1 for finding in findings if finding.error)
    if failed:
        raise PreflightError(
            f"{failed} of {counted(len(findings), 'check')} failed.\n{table}",
            next_step="Correct the cause of each failed check, on the host in the first column. "
            "docs/how-to/cluster.md lists what hosts need.",
        )
    return f"{table}\n{counted(len(findings), 'check')} passed"


def _shards(master: str, storage: Storage) -> Finding:
    """Check the addresses of the shards on the driver's host."""
    addresses = ", ".join(dict.fromkeys(map(_without_path, storage.locations)))
    try:
        require_reachable(master, storage.locations)
        require_usable_shards(storage.locations)
    except SluiceError as error:
        return Finding("driver", "shards", addresses, error.detail)
    return Finding("driver", "shards", addresses)


def _without_path(location: str) -> str:
    """Return the address of a shard's database or server, without the shard itself."""
    return shown(location).partition("?")[0]


def _probe(storage: Storage, settings: Settings) -> Probe:
    databases: dict[str, str] = {}
    servers: dict[tuple[str, int], None] = {}
    for location in storage.locations:
        parts = urlsplit(location)
        if is_remote(location):
            servers[parts.hostname or "", parts.port or 80] = None
        elif parts.scheme.startswith("postgresql"):
            databases.setdefault(_without_path(location), location)
    packages = {name: metadata.version(name) for name in PACKAGES}
    if databases:
        packages["psycopg"] = metadata.version("psycopg")
    return Probe(packages, with_certificates(settings.kafka), databases, tuple(servers))


def _reports(spark: SparkSession, probe: Probe) -> Sequence[Finding]:
    """Run the probe in a task on each core, and return the findings of each host."""
    context = spark.sparkContext
    # Run a job first: Spark then waits for the first executor. It counts only the cores of running
    # executors.
    context.parallelize([0], 1).count()
    if not is_local(context.master or ""):
        time.sleep(_JOIN_SECONDS)
    tasks = max(context.defaultParallelism, 1)

    # A function within a function is sent as code, so executors need not import this module.
    def run(_: int) -> Report:
        return probe.report()

    began = time.time()
    reports = context.parallelize(range(tasks), tasks).map(run).collect()
    ended = time.time()
    findings: dict[tuple[str, str], Finding] = {}
    for report in reports:
        for finding in (*report.findings, _clock(report, began, ended)):
            known = findings.get((finding.where, finding.check))
            # Two executors on a host may have different settings. If one of them fails, keep its
            # finding.
            if known is None or (finding.error and not known.error):
                findings[finding.where, finding.check] = finding
    return [findings[place] for place in sorted(findings)]


def _clock(report: Report, began: float, ended: float) -> Finding:
    """Compare a host's clock with the driver's clock.

    The time that the task took limits the accuracy.
    """
    off = max(began - report.time, report.time - ended, 0.0)
    text = f"differs by {off:.1f} s" if off else "as the driver's"
    if off > _CLOCK_SECONDS:
        return Finding(report.host, "clock", "", f"{text} or more from the driver's clock")
    return Finding(report.host, "clock", text)


def _reason(text: str) -> str:
    """Return the line of Spark's error that tells why Python has failed on an executor."""
    errors = _ERROR.findall(text)
    return str(errors[-1] if errors else text.strip().partition("\n")[0])


def _lines(master: str, findings: Iterable[Finding]) -> Iterable[str]:
    """Yield the lines of the table."""
    rows = [("where", "check", "result", "")]
    for finding in findings:
        detail = masked(finding.error or finding.detail)
        rows.append((finding.where, finding.check, finding.result, detail))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    yield f"executors of {master}"
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[3]]).rstrip()
