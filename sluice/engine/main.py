"""The program that spark-submit starts: `main.py PIPELINE` runs a pipeline until it has read everything."""

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
    """Run or rebuild a pipeline. Prints errors to standard error and returns the exit status."""
    options = [argument for argument in arguments if argument.startswith("-")]
    names = [argument for argument in arguments if not argument.startswith("-")]
    if len(names) != 1 or not {*options} <= {REBUILD, FROM_TOPICS}:
        print(f"usage: main.py [{REBUILD} [{FROM_TOPICS}]] PIPELINE", file=sys.stderr)
        return 2
    try:
        with ThreadPoolExecutor(1) as background:
            # Import and plan while the JVM starts the session and the first Python worker, which takes seconds.
            spark = background.submit(session, settings(), f"sluice {names[0]}")
            warm = background.submit(lambda: start_workers(spark.result()))
            try:
                if REBUILD in options:
                    rebuild(settings(), spark, names[0], from_topics=FROM_TOPICS in options)
                else:
                    run(settings(), spark, names[0])
            finally:
                wait([warm])  # Spark logs an error if it is stopped while this runs
                spark.result().stop()
    except SluiceError as error:
        print(f"{type(error).title}: {error}", file=sys.stderr)
        return 1
    return 0


def run(configuration: Settings, spark: Future[SparkSession], name: str) -> None:
    """Run a pipeline until it has read all records."""
    # These imports run while the session starts.
    import structlog

    from sluice.brokers import require_brokers
    from sluice.engine.job.restore import RestoringRun
    from sluice.plan import explain, load_plan
    from sluice.state.ledger.run_ends import noted

    begun = time.monotonic()
    log = structlog.get_logger()
    with noted(configuration, name, run=configuration.run):
        planned = load_plan(configuration.pipelines, name)
        print(explain(planned), flush=True)
        require_brokers(configuration.kafka)
        read = RestoringRun(spark.result(), planned.job, configuration).run()
    log.info("run done", pipeline=name, read=read, seconds=round(time.monotonic() - begun, 1))


def rebuild(configuration: Settings, spark: Future[SparkSession], name: str, *, from_topics: bool = False) -> None:
    """Rebuild a pipeline's state from its topics."""
    from sluice.brokers import require_brokers
    from sluice.engine.job.rebuild import Rebuild
    from sluice.plan import load_plan

    planned = load_plan(configuration.pipelines, name)
    require_brokers(configuration.kafka)
    Rebuild(spark.result(), planned.job, configuration, from_topics).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
