"""Spark's Python daemon is a process that the driver has forked, or imports the tasks' modules itself."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from sluice.engine.worker_daemon import environment_of_tasks
from sluice.support.processes import has_ended
from sluice.support.startup import PREPARED_DAEMON

DRIVER = """
import subprocess, sys
jvm = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
from sluice.engine.worker_daemon import prepare
with prepare():
    print(jvm.pid, flush=True)
    sys.stdin.read()
"""
"""Starts a process that ends when its standard input ends, as a JVM does, and prints its id."""

PYTHON = DRIVER.replace("jvm.pid", "os.environ['PYSPARK_PYTHON']").replace("sys", "os, sys", 1)
"""As `DRIVER`, but prints which Python Spark starts for tasks."""


@contextmanager
def program(
    *arguments: str,
    variables: dict[str, str],
    python: str = sys.executable,
    folder: Path | None = None,
    errors: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program until the block ends, at which its standard input is closed."""
    process = subprocess.Popen(
        [python, *arguments],
        env=os.environ
        | {
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHON_WORKER_FACTORY_SECRET": "secret",
            **variables,
        },
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    try:
        with process:
            yield process
    finally:
        process.kill()


def output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def integer(file: IO[bytes]) -> int:
    (number,) = struct.unpack(">i", file.read(4))
    return int(number)


def worker(daemon: subprocess.Popen[bytes]) -> psutil.Process:
    """A new worker of the daemon whose port is the next part of the process's output."""
    with socket.create_connection(("127.0.0.1", integer(output(daemon))), timeout=60) as connection:
        return psutil.Process(integer(connection.makefile("rb")))


def forked_by(driver: subprocess.Popen[bytes]) -> psutil.Process:
    """The process that the driver has prepared."""
    children = psutil.Process(driver.pid).children()
    (prepared,) = (child for child in children if child.name() != "cat")
    return prepared


def test_the_process_that_the_driver_has_prepared_is_the_daemon(tmp_path: Path) -> None:
    variables = {PREPARED_DAEMON: str(tmp_path / "daemon")}
    daemon = ("-m", "sluice.engine.worker_daemon", "pyspark.worker")
    with program("-c", DRIVER, variables=variables) as driver:
        jvm = psutil.Process(int(output(driver).readline()))
        prepared = forked_by(driver)
        with program(*daemon, variables=variables) as first:
            assert worker(first).ppid() == prepared.pid
            # After a crash, or for another environment, Spark starts another daemon.
            with program(*daemon, variables=variables) as second:
                assert worker(second).ppid() == second.pid
            driver.kill()
            jvm.wait(30)
            assert prepared.is_running()


def test_spark_starts_a_small_program_in_place_of_python(tmp_path: Path) -> None:
    variables = {PREPARED_DAEMON: str(tmp_path / "daemon")}
    with program("-c", PYTHON, variables=variables) as driver:
        python = output(driver).readline().decode().strip()
        assert python == str(tmp_path / "python")
        daemon = ("-m", "sluice.engine.worker_daemon", "pyspark.worker")
        prepared = forked_by(driver)
        with program(*daemon, variables=variables, python=python) as first:
            assert worker(first).ppid() == prepared.pid
            with program(*daemon, variables=variables, python=python) as second:
                assert worker(second).ppid() == second.pid
        # Whatever else Spark starts is started by the Python itself.
        shows = "import sys, sluice; print(sys.executable, sys.argv[1:])"
        with program("-c", shows, "a b", variables=variables, python=python) as other:
            assert output(other).read().decode() == f"{sys.executable} ['a b']\n"


@pytest.mark.parametrize("given", ["/opt/python", ""])
def test_spark_starts_python_itself_if_the_small_program_cannot_take_its_place(
    tmp_path: Path, given: str
) -> None:
    variables = {PREPARED_DAEMON: str(tmp_path / "daemon"), "PYSPARK_PYTHON": given}
    if not given:
        # The system would refuse to start it, as it does on a file system for data only.
        variables["PYSPARK_PYTHON"] = sys.executable
        (tmp_path / "python").write_text("not executable")
    with program("-c", PYTHON, variables=variables) as driver:
        python = output(driver).readline().decode().strip()
    assert python == variables["PYSPARK_PYTHON"]


def test_a_task_of_another_python_than_the_drivers_does_not_use_the_prepared_process(
    tmp_path: Path,
) -> None:
    variables = {PREPARED_DAEMON: str(tmp_path / "daemon")}
    with program("-c", DRIVER, variables=variables) as driver:
        output(driver).readline()
        other = {**variables, "PYSPARK_DRIVER_PYTHON": "/usr/bin/python-of-the-driver"}
        with program(
            "-m", "sluice.engine.worker_daemon", "pyspark.worker", variables=other
        ) as daemon:
            assert worker(daemon).ppid() == daemon.pid


def test_the_daemon_gets_everything_from_the_program_that_spark_has_started(tmp_path: Path) -> None:
    telling = """
import json, os, sys
from sluice.engine import worker_daemon
worker_daemon.serve = lambda: print(json.dumps([sys.argv[1:], os.getcwd(), sys.path[-1], os.environ["OF"]]), flush=True)
with worker_daemon.prepare():
    print("ready", flush=True)
    sys.stdin.read()
"""
    variables = {PREPARED_DAEMON: str(tmp_path / "daemon")}
    with program("-c", telling, variables={**variables, "OF": "the driver"}) as driver:
        assert output(driver).readline() == b"ready\n"
        started = program(
            "-m", "sluice.engine.worker_daemon", "pyspark.worker", folder=tmp_path,
            variables={**variables, "OF": "a stage", "PYTHONPATH": "/added"},
        )  # fmt: skip
        with started as daemon:
            assert json.loads(output(daemon).readline()) == [
                ["pyspark.worker"],
                str(tmp_path),
                "/added",
                "a stage",
            ]


def test_a_prepared_process_ends_with_its_driver(tmp_path: Path) -> None:
    with program("-c", DRIVER, variables={PREPARED_DAEMON: str(tmp_path / "daemon")}) as driver:
        output(driver).readline()
        prepared = forked_by(driver)
        driver.kill()
        prepared.wait(30)


@pytest.mark.parametrize("folder", ["missing", "long/" * 50])
def test_a_daemon_that_was_not_prepared_imports_the_modules_itself(
    tmp_path: Path, folder: str
) -> None:
    variables = {PREPARED_DAEMON: str(tmp_path / folder / "daemon")}
    with program("-c", DRIVER, variables=variables) as driver:
        jvm = int(output(driver).readline())
        assert [child.pid for child in psutil.Process(driver.pid).children()] == [jvm]
        with program(
            "-m", "sluice.engine.worker_daemon", "pyspark.worker", variables=variables
        ) as daemon:
            assert worker(daemon).ppid() == daemon.pid


@pytest.mark.parametrize("module", ["sluice.engine.worker_daemon", "sluice.testing.daemon"])
def test_a_worker_whose_task_is_stopped_before_it_begins_ends_without_a_traceback(
    module: str,
) -> None:
    """A query that reads ahead is stopped at any moment, if the batch before has failed."""
    with program("-m", module, "pyspark.worker", variables={}, errors=subprocess.PIPE) as daemon:
        address = "127.0.0.1", integer(output(daemon))
        for end in ("closed", "reset"):
            with socket.create_connection(address, timeout=60) as connection:
                started = psutil.Process(integer(connection.makefile("rb")))
                if end == "reset":
                    connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
            psutil.wait_procs([started], 30)
            assert has_ended(started)
        _, errors = daemon.communicate(timeout=30)
    assert b"Traceback" not in errors


def test_tasks_of_a_warm_driver_have_the_environment_of_their_run() -> None:
    of_jvm = {"PATH": "/jvm", "SLUICE_HOME": "/jvm", "ONLY": "of the JVM"}
    of_spark = {**of_jvm, "PYTHON_WORKER_FACTORY_SECRET": "secret", "PYTHONPATH": "/spark"}
    own = {"PATH": "/run", "SLUICE_HOME": "/run", "PYTHONPATH": "/run"}
    assert environment_of_tasks(own, of_spark, of_jvm) == {
        "PATH": "/run",
        "SLUICE_HOME": "/run",
        "PYTHONPATH": "/spark",
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
    }
    assert environment_of_tasks(own, of_spark, None) == of_spark
