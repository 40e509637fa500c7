"""Spark's Python daemon.

It imports the modules that tasks need before it forks the processes that run tasks.

So these processes start fast, and share the memory of the modules.

The driver on the same host imports the same modules. It has therefore forked a process that waits
to be the daemon (`prepare`). This program then only passes stdin, arguments and so on from Spark to
that process, and waits until the process ends. On the other hosts of a cluster, this program is the
daemon itself.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NoReturn

from sluice.engine.daemon_caller import PART, hand_over, write_program
from sluice.support.pandas_on_demand import import_pandas_on_demand
from sluice.support.startup import PREPARED_DAEMON, importing


def prepare(
    environment_of_jvm: Mapping[str, str] | None = None,
) -> AbstractContextManager[object]:
    """If the environment names a socket, fork a process that becomes Spark's daemon.

    The forked process waits until Spark starts this program, and ends after the block if Spark has
    not started it before. Call this function in a process without other threads. The daemon has the
    environment with which Spark starts this program. If the JVM belongs to a warm driver, pass its
    environment as `environment_of_jvm`. The daemon then gets this process's variables. Of Spark's
    variables, it gets only those that the JVM's own environment lacks.
    """
    path = os.environ.get(PREPARED_DAEMON)
    if not path:
        return nullcontext()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError:
        # The path may be too long for a socket. Spark's daemon then imports the modules itself.
        listener.close()
        return nullcontext()
    listener.listen(1)
    if os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
        program = write_program(str(Path(path).parent))
        if program:
            os.environ["PYSPARK_PYTHON"] = program
    driver, daemon = socket.socketpair()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if not os.fork():
        _close_all_except(0, 1, 2, listener.fileno(), daemon.fileno())
        _wait(listener, daemon, environment_of_jvm)
    listener.close()
    daemon.close()
    return driver


def _close_all_except(*kept: int) -> None:
    """Close the files that this process has inherited from the driver.

    One of these files would keep the JVM alive after the driver was killed: the JVM ends only when
    nobody can write to its standard input any more.
    """
    for descriptor in [int(file.name) for file in Path("/dev/fd").iterdir()]:
        if descriptor not in kept:
            # The descriptor of the folder itself is closed already.
            with suppress(OSError):
                os.close(descriptor)


def _wait(
    listener: socket.socket,
    driver: socket.socket,
    environment_of_jvm: Mapping[str, str] | None,
) -> NoReturn:
    """Wait for the first caller, and become its daemon. End if the driver ends before that."""
    try:
        ready, _, _ = select.select([listener, driver], [], [])
        if listener in ready:
            caller, _ = listener.accept()
            listener.close()
            _take_over(caller, environment_of_jvm)
            serve()
    except (SystemExit, KeyboardInterrupt):
        # Spark's daemon ends with SystemExit, and a terminal interrupts all processes of a command.
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        # The driver's own handlers must not run here.
        os._exit(1)


def _take_over(caller: socket.socket, environment_of_jvm: Mapping[str, str] | None) -> None:
    """Get stdin, stdout, arguments and environment from the process that Spark has started.

    Standard error stays the driver's, because the output of tasks belongs to the driver's output.
    """
    message, descriptors, _, _ = socket.recv_fds(caller, PART, 2)
    while part := caller.recv(PART):
        message += part
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv, folder, of_spark = json.loads(message)
    variables = environment_of_tasks(os.environ, of_spark, environment_of_jvm)
    # If the JVM is shared, Spark's working folder belongs to no run, so stay in this process's
    # folder.
    if environment_of_jvm is None:
        os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    # Python reads this variable only when it starts.
    paths = of_spark.get("PYTHONPATH", "").split(os.pathsep)
    sys.path.extend(path for path in paths if path and path not in sys.path)


def environment_of_tasks(
    own: Mapping[str, str], of_spark: Mapping[str, str], of_jvm: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the environment variables of a run's tasks.

    `own` are the run's variables, and `of_spark` are those with which Spark starts its daemon.
    `of_jvm` are the variables of a warm driver's JVM; None if the run has its own JVM.
    """
    if of_jvm is None:
        return {**of_spark}
    variables = {**own}
    for name, value in of_spark.items():
        if of_jvm.get(name) != value:
            variables[name] = value
    return variables


def serve() -> None:
    """Fork a process for each of Spark's requests, until Spark closes standard input."""
    # Workers collect garbage after every task. `importing` excludes the imported modules from these
    # collections. Otherwise, a collection would take longer than a task. Two small batches of the
    # words pipeline would take 1.0 s of the workers' CPU time instead of 0.3 s.
    with importing():
        import_pandas_on_demand()
        import pyspark.daemon  # noqa: F401

        import sluice.engine.task_modules  # noqa: F401
        from sluice.support.memory import release_memory_after_task

    gc.callbacks.append(release_memory_after_task)
    fork_workers()


def fork_workers() -> None:
    """Run PySpark's daemon, whose workers end without a traceback if Spark stops their tasks.

    Spark then closes the connections, even of a worker that it has just started. A task's
    own errors go to Spark, never to the daemon.
    """
    from pyspark import daemon

    run_tasks = daemon.worker

    def run_tasks_until_stopped(connection: socket.socket, authenticated: bool) -> int:
        # Standard output is a pipe to Spark, which copies the output to the JVM's standard error.
        # This process's standard error is the driver's or, with a warm driver, the run's.
        os.dup2(2, 1)
        try:
            return run_tasks(connection, authenticated)
        except (EOFError, ConnectionError):
            return 1

    vars(daemon)["worker"] = run_tasks_until_stopped
    daemon.manager()


if __name__ == "__main__" and not hand_over(os.environ.get(PREPARED_DAEMON), sys.argv[1:]):
    serve()
