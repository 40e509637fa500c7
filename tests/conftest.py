"""Shared by all tests: markers by folder, skips that count as failures in CI, one Spark per process, one broker."""

from __future__ import annotations

import fcntl
import gc
import itertools
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from sluice.local.broker import EmbeddedKafka, running
from sluice.testing.memory import memory_folder
from tests.support.ports import free_port
from tests.support.postgres import postgres_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.parallel import Dealer

HERE = Path(__file__).parent
_NUMBERS = itertools.count()
_BROKER = "SLUICE_TESTS_BROKER"
"""The environment variable with the folder of the broker that all processes of pytest-xdist
share."""
_DEALER: pytest.StashKey[Dealer] = pytest.StashKey()
"""The distribution of the tests over the processes of pytest-xdist."""

# The time of an example depends more on the machine than on the code.
hypothesis.settings.register_profile("sluice", deadline=None, max_examples=15)
hypothesis.settings.register_profile("heavy", deadline=None, max_examples=200)
hypothesis.settings.load_profile("sluice")  # pytest's option --hypothesis-profile takes precedence

# Tests are collected into some million objects that all live to the end. Python's garbage collector
# would look at them again and again, during the collection of the tests and in every full
# collection later.
gc.disable()

# Connections to Spark log a message when Python ends, but the log is closed by then.
logging.getLogger("py4j").setLevel(logging.WARNING)

# Spark's Python workers must find the tests' contracts, whichever test starts Spark.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--postgres`: the tests of pipelines keep their state in PostgreSQL instead of SQLite files.

    `--spark`: they run on Spark, also if they do not need it.

    `--fab`: the tests of the REST API use Airflow's FAB auth manager.
    """
    parser.addoption("--spark", action="store_true", help="test all pipelines on Spark")
    parser.addoption(
        "--postgres", action="store_true", help="test pipelines with their state in PostgreSQL"
    )
    parser.addoption(
        "--fab", action="store_true", help="test the REST API with Airflow's FAB auth manager"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folders of files and of the broker, before pytest-xdist starts its processes."""
    if not hasattr(config, "workerinput"):
        # Tests would wait for the disk again and again, because databases and brokers flush what
        # they write.
        if memory := memory_folder():
            os.environ["TMPDIR"] = memory
            tempfile.tempdir = None
        os.environ[_BROKER] = tempfile.mkdtemp(prefix="sluice-tests-broker-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the broker, if a test has started it.

    All processes of pytest-xdist have ended by now.
    """
    if not hasattr(config, "workerinput"):
        folder = Path(os.environ.pop(_BROKER))
        EmbeddedKafka(folder).stop()
        shutil.rmtree(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its folder: tests in tests/engine have the marker `engine`."""
    for item in items:
        if HERE in item.path.parents and item.path.parent != HERE:
            item.add_marker(item.path.relative_to(HERE).parts[0])
    if hasattr(config, "workerinput"):
        from tests.support.parallel import needs_spark, rank

        items.sort(key=rank)
        # pytest-xdist tells `Dealer` only the ids of tests. Each process writes the same file.
        on_spark = [item.nodeid for item in items if needs_spark(item)]
        Path(os.environ[_BROKER], "on_spark").write_text("\n".join(on_spark))


def pytest_collection_finish() -> None:
    """Collect garbage again, but only among objects that the tests themselves make, and less often than by default."""
    gc.freeze()
    # Once tests have imported Spark, a full collection takes nearly a tenth of a second. By
    # default, one follows every 70,000 new objects.
    gc.set_threshold(2_000, 20, 20)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Collect the garbage of the last tests.

    In the end, pytest would look for more five times, for a second.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Let `Dealer` distribute the tests over the processes of pytest-xdist."""
    from tests.support.parallel import Dealer

    config.stash[_DEALER] = dealer = Dealer(config, log, Path(os.environ[_BROKER], "on_spark"))
    return dealer


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which file a process has run while the others had nothing left to do."""
    if (dealer := config.stash.get(_DEALER, None)) is not None:
        for line in dealer.late_files():
            terminalreporter.write_line(line, yellow=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Fail a test that starts Spark without the marker `spark`: it would cost its process the start of a Spark."""
    from tests.support.parallel import needs_spark

    had_spark = _has_spark()
    yield
    if _has_spark() and not had_spark and not item.config.getoption("--spark"):
        assert needs_spark(item), "This test has started Spark: give it the marker spark."


def _has_spark() -> bool:
    """Whether this process has started a Spark."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a skipped test is a failure."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} may not be skipped in CI: {call.excinfo.value if call.excinfo else ''}"
        )
    return report


@pytest.fixture(scope="module", autouse=True)
def _ledgers_closed() -> Iterator[None]:
    """Close the ledgers of a file's `States`: psycopg warns of connections that nobody has closed."""
    yield
    if states := sys.modules.get("tests.support.states"):
        states.close_ledgers()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark session of all engine tests and of every TopologyTestDriver in this process, on loopback only."""
    from sluice.testing.topology_test_driver import shared_session

    made = shared_session()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def session(request: pytest.FixtureRequest) -> SparkSession | None:
    """The Spark session of test drivers; None if only the pipelines that need Spark run on it."""
    return request.getfixturevalue("spark") if request.config.getoption("--spark") else None


@pytest.fixture(scope="session")
def kafka() -> EmbeddedKafka:
    """One real broker for all tests, also of other processes.

    Names of topics and pipelines must be a test's own.
    """
    folder = Path(os.environ[_BROKER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = running(folder)
        broker = EmbeddedKafka(folder, started.port if started else free_port())
        if started is None:
            broker.start()
    return broker


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of one PostgreSQL server for all tests of this process."""
    with postgres_server(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """Makes names of topics or pipelines that no other test uses: `fresh_name("orders")` is `orders_gw0_7`."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return lambda name: f"{name}_{process}_{next(_NUMBERS)}"
