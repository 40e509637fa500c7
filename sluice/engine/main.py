"""The program that spark-submit starts: `main.py PIPELINE [JOB ...]` runs jobs until they have read everything."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from pyspark.sql import SparkSession

from sluice.engine.session import session, start_workers
from sluice.errors import SluiceError
from sluice.settings import Settings, settings

REBUILD, FROM_TOPICS = "--rebuild", "--from-topics"


def main(arguments: list[str]) -> int:
    """Run jobs of a pipeline, all if none is named; 0, or 1 after an error that is said on standard error."""
    options = [argument for argument in arguments if argument.startswith("-")]
    names = [argument for argument in arguments if not argument.startswith("-")]
    if not names or not {*options} <= {REBUILD, FROM_TOPICS}:
        print(f"usage: main.py [{REBUILD} [{FROM_TOPICS}]] PIPELINE [JOB ...]", file=sys.stderr)
        return 2
    try:
        with ThreadPoolExecutor(1) as aside:
            # The JVM takes seconds over its session and its first Python worker: imports and planning go on meanwhile.
            spark = aside.submit(session, settings(), f"sluice {names[0]}")
            warm = aside.submit(lambda: start_workers(spark.result()))
            try:
                if REBUILD in options:
                    rebuild(settings(), spark, *names, from_topics=FROM_TOPICS in options)
                else:
                    run(settings(), spark, *names)
            finally:
                wait([warm])  # else Spark complains of the task that it is stopped under
                spark.result().stop()
    except SluiceError as error:
        print(f"{type(error).title}: {error}", file=sys.stderr)
        return 1
    return 0


def run(configuration: Settings, spark: Future[SparkSession], name: str, *chosen: str) -> None:
    """Run jobs of a pipeline one after the other, each until it has read what there is."""
    # Imported here, while the session starts.
    import structlog

    from sluice.brokers import require_brokers
    from sluice.engine.job.compatibility import require_same_jobs
    from sluice.engine.job.restore import RestoringRun
    from sluice.plan import explain, load_plan
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.run_ends import noted

    begun = time.monotonic()
    log = structlog.get_logger()
    with noted(configuration, name, run=configuration.run):
        planned = load_plan(configuration.pipelines, name)
        print(explain(planned), flush=True)
        with Ledger.open(configuration.ledger) as ledger:
            require_same_jobs(ledger, planned)
        require_brokers(configuration.kafka)
        jobs = [planned.job(job) for job in chosen] or planned.jobs
    for job in jobs:
        with noted(configuration, name, job.name, configuration.run):
            read = RestoringRun(spark.result(), job, configuration).run()
        log.info("job done", pipeline=name, job=job.name, read=read, seconds=round(time.monotonic() - begun, 1))


def rebuild(
    configuration: Settings, spark: Future[SparkSession], name: str, *chosen: str, from_topics: bool = False
) -> None:
    """Build the state of jobs of a pipeline anew from their topics."""
    from sluice.brokers import require_brokers
    from sluice.engine.job.rebuild import Rebuild, forget_gone
    from sluice.plan import load_plan

    planned = load_plan(configuration.pipelines, name)
    require_brokers(configuration.kafka)
    for job in [planned.job(job) for job in chosen] or planned.jobs:
        Rebuild(spark.result(), job, configuration, from_topics).run()
    if not chosen:
        forget_gone(planned, configuration)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
