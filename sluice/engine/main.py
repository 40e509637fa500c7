"""The program that spark-submit runs."""

from __future__ import annotations

import sys
import time

import structlog

from sluice.engine.job import JobRun
from sluice.engine.session import session
from sluice.errors import SluiceError
from sluice.plan import explain, plan
from sluice.settings import settings
from sluice.topology import load_pipeline

log = structlog.get_logger()


def main(arguments: list[str]) -> int:
    """Run jobs of a pipeline, all if none is named; 0, or 1 after an error that is said on standard error."""
    if not arguments:
        print("usage: run.py PIPELINE [JOB ...]", file=sys.stderr)
        return 2
    try:
        run(*arguments)
    except SluiceError as error:
        print(f"{type(error).title}: {error}", file=sys.stderr)
        return 1
    return 0


def run(name: str, *chosen: str) -> None:
    """Run jobs of a pipeline one after the other, each until it has read what there is."""
    begun = time.monotonic()
    configuration = settings()
    planned = plan(load_pipeline(configuration.pipelines, name))
    jobs = [planned.job(job) for job in chosen] or planned.jobs
    print(explain(planned), flush=True)
    spark = session(configuration, f"sluice {name}")
    try:
        for job in jobs:
            read = JobRun(spark, job, configuration).run()
            log.info("job done", pipeline=name, job=job.name, read=read, seconds=round(time.monotonic() - begun, 1))
    finally:
        spark.stop()
