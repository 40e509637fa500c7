"""Runs conformance cases on Kafka Streams' input, in one batch or in several, and compares the results.

If the answer of Kafka Streams in a case follows from a rule in which Sluice differs on purpose, the
results are compared with the model (see `model/answers.py`). The last lines say for how many cases.

python -m tests.conformance.run CASES.jsonl [--cuts one|each|random] [--features a,b] [--every N] [--alone] [--spark]
                                             [--cluster]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sluice import Pipeline
from sluice.errors import TopologyError
from sluice.plan import plan
from sluice.settings import settings
from sluice.testing import TopologyTestDriver
from sluice.testing.local_run import why_not_local
from sluice.testing.topology_test_driver import Output, shared_session
from sluice.values.sink_tables import WINDOW
from tests.conformance.adapter import Built, Case, NotMet, Row, add, collapsed
from tests.conformance.model.answers import answer_of, report
from tests.support.postgres import new_database, postgres_server
from tests.support.signals import interrupt_on_sigterm

TOGETHER = 24
"""Number of cases in one pipeline; they are independent and share the cost of a batch."""


@dataclass(frozen=True)
class Place:
    """Where pipelines run, and the number of their workers. By default on the local Spark, with state in files."""

    workers: int = 1
    spark: SparkSession | None = None
    server: str = ""
    """URL of a PostgreSQL server, which gets a database for each pipeline."""

    def driver(self, pipeline: Pipeline) -> TopologyTestDriver:
        database = new_database(self.server) if self.server else ""
        return TopologyTestDriver(pipeline, spark=self.spark, database=database, clock=0)


LOCAL = Place()


def main(arguments: list[str]) -> int:
    """Run the cases of a file. Returns 0 if all pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--cuts", choices=("one", "each", "random"), default="one")
    parser.add_argument("--features", default="")
    parser.add_argument("--alone", action="store_true", help="each case in a pipeline of its own")
    parser.add_argument("--every", type=int, default=1, help="only every Nth case of the file")
    parser.add_argument(
        "--spark", action="store_true", help="all cases on Spark, also those that do not need it"
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="on a standalone Spark cluster of two workers, with PostgreSQL",
    )
    given = parser.parse_args(arguments)
    wanted = set(filter(None, given.features.split(",")))
    cases = [
        case
        for case in map(json.loads, given.cases.open())
        if not wanted or case["feature"] in wanted
    ]
    cases = cases[:: given.every]
    if not cases:
        print(
            f"There is no case of {given.features or 'any feature'} in {given.cases}.",
            file=sys.stderr,
        )
        return 2
    answers = [answer_of(case) for case in cases]
    cases = [
        case | {"expected": {"final": answer.rows}}
        for case, answer in zip(cases, answers, strict=True)
    ]
    passed, failed = 0, 0
    alone = Place(spark=shared_session()) if given.spark else LOCAL
    with on_cluster() if given.cluster else nullcontext(alone) as place:
        for feature, mine in by_feature(cases):
            start = time.monotonic()
            problems = run_all(mine, given.cuts, 1 if given.alone else TOGETHER, place)
            good = len(mine) - len(problems)
            passed, failed = passed + good, failed + len(problems)
            print(f"{feature} {good}/{len(mine)}", flush=True)
            print(f"  {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
            for case, why in problems:
                print(f"  {case}: {why}", flush=True)
    for line in report(answers):
        print(line)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


@contextmanager
def on_cluster() -> Iterator[Place]:
    """A standalone cluster of two workers, and a PostgreSQL server."""
    from sluice.engine.session import session
    from sluice.settings import Settings
    from tests.cluster.standalone import spark_cluster

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with (
        tempfile.TemporaryDirectory(
            prefix="sluice-conformance-", ignore_cleanup_errors=True
        ) as folder,
        spark_cluster(Path(folder, "spark")) as cluster,
        postgres_server(Path(folder, "postgres")) as server,
    ):
        conf = {
            "spark.master": cluster.master,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.log.level": "ERROR",
            # The executors import Sluice and the cases' functions from here.
            "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
        }
        spark = session(Settings.read({"SLUICE_SPARK_CONF": json.dumps(conf)}), "conformance")
        yield Place(workers=2, spark=spark, server=server)
        context: Any = spark.sparkContext
        # The driver is also in this map.
        assert context._jsc.sc().getExecutorMemoryStatus().size() == 3, (
            "a worker's executor is lost"
        )
        spark.stop()


def by_feature(cases: Iterable[Case]) -> Iterator[tuple[str, list[Case]]]:
    """The cases of each feature, in the order of the file."""
    results: dict[str, list[Case]] = {}
    for case in cases:
        results.setdefault(case["feature"], []).append(case)
    yield from results.items()


def run_all(
    cases: list[Case], cuts: str, together: int, place: Place = LOCAL
) -> list[tuple[str, str]]:
    """Run cases, `together` per pipeline. Returns the names of failed cases, with the reasons."""
    problems = []
    if place == LOCAL:
        local = [case for case in cases if needs_no_spark(case)]
        for case in local:
            problems += _tried([case], cuts, place)
        cases = [case for case in cases if case not in local]
    for begin in range(0, len(cases), together):
        some = cases[begin : begin + together]
        problems += _tried(some, cuts, place)
    return problems


def needs_no_spark(case: Case) -> bool:
    """Whether the driver runs the case in this process."""
    pipeline = Pipeline("conformance", workers=1)
    try:
        add(pipeline, case, "c0")
    except (NotMet, TopologyError):
        return True  # `_tried` reports the error
    return not why_not_local(plan(pipeline).job, settings())


def _tried(cases: list[Case], cuts: str, place: Place) -> list[tuple[str, str]]:
    """Like `run`. After an error in one of several cases, each runs alone, to find out which one failed."""
    try:
        return run(cases, cuts, place)
    except Exception as error:  # an error in one case must not stop the others
        if len(cases) == 1:
            return [(cases[0]["id"], f"{type(error).__name__}: {error}")]
        return [problem for case in cases for problem in _tried([case], cuts, place)]


def run(cases: list[Case], cuts: str, place: Place = LOCAL) -> list[tuple[str, str]]:
    """Run cases in one pipeline."""
    pipeline = Pipeline("conformance", workers=place.workers)
    built = [add(pipeline, case, f"c{number}") for number, case in enumerate(cases)]
    with place.driver(pipeline) as driver:
        feed(driver, built, cuts)
        return [
            (one.case["id"], why) for one in built if (why := difference(one, results(driver, one)))
        ]


def feed(driver: TopologyTestDriver, built: list[Built], cuts: str) -> None:
    """Pipe the records of all cases, each case's in order, and end batches as `cuts` says."""
    rng = random.Random("".join(case.case["id"] for case in built))
    for step in range(max(len(case.case["inputs"]) for case in built)):
        for case in built:
            for record in case.case["inputs"][step : step + 1]:
                if "advance_wall_clock_ms" in record:
                    driver.advance(record["advance_wall_clock_ms"])
                    continue
                driver.pipe(
                    case.topic_of(record["topic"]), record["value"], record["key"], timestamp=record["ts"],
                    headers=record.get("headers"),
                )  # fmt: skip
        if cuts == "each" or (cuts == "random" and rng.random() < 0.25):
            driver.commit()


def results(driver: TopologyTestDriver, built: Built) -> list[Row]:
    """The pipeline's results for a case."""
    if built.store is not None:
        rows: list[Row] = []
        for key, value in driver.store(built.store).items():
            rows.append(
                (key[0], (key[1], key[2]), value, {})
                if isinstance(key, tuple)
                else (key, None, value, {})
            )
        return rows
    assert built.topic is not None
    results = [
        (
            record.key,
            _window(record.headers) if built.is_windowed else None,
            record.value,
            _more(built, record),
        )
        for topic in filter(None, (built.topic, built.further_topic))
        for record in driver.output(topic)
    ]
    return results if built.case["spec"]["result_kind"] == "stream" else collapsed(results)


def _more(built: Built, record: Output) -> dict[str, Any]:
    """The headers, without those of Sluice, and the time of a record, if the case compares them."""
    pairs = [
        list(pair) for pair in record.header_pairs if not (built.is_windowed and pair[0] in WINDOW)
    ]
    return {
        name: value
        for name, value in (("headers", pairs), ("ts", record.timestamp))
        if name in built.compared
    }


def _window(headers: dict[str, str]) -> tuple[int, int] | None:
    return (
        (int(headers["window_start"]), int(headers["window_end"]))
        if "window_start" in headers
        else None
    )


def difference(built: Built, found: list[Row]) -> str:
    """The missing and the unexpected results; empty if the results are equal."""
    wanted, got = (Counter(map(_told, rows)) for rows in (built.wanted(), found))
    missing, extra = list((wanted - got).elements()), list((got - wanted).elements())
    return f"missing {missing[:3]}, too much {extra[:3]}" if missing or extra else ""


def _told(row: Row) -> str:
    key, window, value, more = row
    return json.dumps([key, list(window) if window else None, value, more], sort_keys=True)


def _main() -> Any:
    return main(sys.argv[1:])


if __name__ == "__main__":
    import logging

    import structlog

    interrupt_on_sigterm()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sys.exit(_main())
