"""The program of a warm driver, which `sluice warm` starts.

It consists of three processes. This one, the keeper, starts the JVM and its Spark session, and
makes sessions for the runs. The fork server, which it forks before it has any thread, forks the
processes of the runs. If one of the three ends, so do the others, and with them all runs. If only
the command `sluice warm` ends, the three end after the last run.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

LIMITS = "SLUICE_WARM_LIMITS"
"""The environment variable with the driver's limits, as JSON."""
KEY = "SLUICE_WARM_KEY"
SOCKET = "SLUICE_WARM_SOCKET"
COMMAND = "SLUICE_WARM_COMMAND"
"""The environment variable with the process id of the command that has started this program."""
READY = "A warm driver takes runs: "


def main() -> int:
    """Start the JVM with the arguments in PYSPARK_SUBMIT_ARGS, and serve runs.

    Return the exit status.
    """
    command_ended = _descriptor_of_command()
    spark_submit = str(Path(sys.executable).parent / "spark-submit")
    command = [spark_submit, *shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])]
    # The JVM ends when its standard input ends, that is, together with this process.
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    from sluice.support.startup import importing

    with importing():
        import_all()
    of_keeper, of_server = socket.socketpair()
    server = os.fork()
    if not server:
        of_keeper.close()
        assert process.stdin is not None
        process.stdin.close()
        _serve_runs(of_server, command_ended)
    of_server.close()
    return _keep_jvm(process, of_keeper, server)


def _descriptor_of_command() -> int:
    """Return a descriptor that is readable when the command has ended.

    Raise SystemExit if it has ended already.
    """
    command = int(os.environ[COMMAND])
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(command)
        # If the command had ended before, another process might have its id.
        if os.getppid() == command:
            return descriptor
    raise SystemExit("The command sluice warm has ended.")


def import_all() -> None:
    """Import all that runs need, so that the processes of runs need not import it."""
    from sluice.support.pandas_on_demand import import_pandas_on_demand

    import_pandas_on_demand()
    import psutil  # noqa: F401

    import sluice.driver
    import sluice.engine.shared_jvm
    import sluice.engine.task_modules
    import sluice.engine.worker_daemon
    import sluice.observe.budgets
    import sluice.observe.run_measurements
    import sluice.operations.changed_stores
    import sluice.operations.rebuild
    import sluice.operations.repair
    import sluice.operations.rollback
    import sluice.plan
    import sluice.public_names
    import sluice.state.ledger.run_begins
    import sluice.state.ledger.run_ends
    import sluice.topology.loading.pipeline_connections
    import sluice.topology.loading.pipeline_folders
    import sluice.values.commanded_run
    import sluice.warm.fork_server  # noqa: F401
    from sluice.errors import SettingsError
    from sluice.settings import settings
    from sluice.state.database import import_dialect
    from sluice.topology.expressions import import_parser

    import_parser()
    # If an address is invalid, the runs report it.
    with suppress(SettingsError):
        import_dialect(settings().ledger)
        import_dialect(settings().shards)


def _keep_jvm(process: subprocess.Popen[bytes], server_end: socket.socket, server: int) -> int:
    """Start Spark, serve its sessions, and stop it when the fork server has ended."""
    from sluice.engine.shared_jvm import JvmKeeper
    from sluice.engine.starting_jvm import StartingJvm
    from sluice.errors import SluiceError
    from sluice.settings import masked, settings
    from sluice.spark_submit import CONNECTION

    jvm = StartingJvm(process, Path(os.environ[CONNECTION]))
    try:
        spark = jvm.session(settings(), "sluice warm")
    except SluiceError as error:
        print(masked(f"{type(error).title}: {error}"), file=sys.stderr)
        return 1

    def end_with_jvm() -> None:
        process.wait()
        # Closing the connection lets the fork server end.
        os._exit(1)

    for target in (end_with_jvm, JvmKeeper(spark, _keeper_path()).serve):
        threading.Thread(target=target, daemon=True).start()
    server_end.send(b"r")
    server_end.recv(1)
    _, waited = os.waitpid(server, 0)
    jvm.stop(spark)
    return abs(os.waitstatus_to_exitcode(waited))


def _keeper_path() -> Path:
    from sluice.spark_submit import CONNECTION

    return Path(os.environ[CONNECTION]).with_name("jvm")


def _serve_runs(keeper_end: socket.socket, command_ended: int) -> NoReturn:
    """Serve runs until the driver has reached its limits, or the JVM or the command has ended."""
    from sluice.warm.fork_server import ForkServer, Limits

    status = 1
    try:
        if keeper_end.recv(1):
            limits = Limits(**json.loads(os.environ[LIMITS]))
            path = Path(os.environ[SOCKET])
            run = Run(_keeper_path(), dict(os.environ))
            server = ForkServer(path, os.environ[KEY], keeper_end, command_ended, run, limits)
            print(f"{READY}{path}", flush=True)
            status = int(server.serve())
    except BaseException:
        # The handlers of the process that has forked this process must not run here.
        traceback.print_exc()
    finally:
        os._exit(status)


@dataclass(frozen=True)
class Run:
    """Does runs, each in a process that has been forked for it."""

    keeper: Path
    """The socket of the JVM's keeper."""
    environment: dict[str, str]
    """The environment of the warm driver."""

    def __call__(self, environment: dict[str, str], arguments: list[str], number: int) -> int:
        """Run the driver's program in this process as if the process had been started for it."""
        from sluice.driver import main
        from sluice.engine.shared_jvm import SharedJvm
        from sluice.settings import settings
        from sluice.support.startup import PREPARED_DAEMON

        # Spark has a daemon of Python processes for each set of variables, so each run has its own.
        daemon = {PREPARED_DAEMON: str(self.keeper.with_name(f"daemon-{number}"))}
        os.environ.clear()
        os.environ.update(environment | daemon)
        time.tzset()
        settings.cache_clear()
        try:
            return main(arguments, SharedJvm(self.keeper, self.environment, daemon))
        finally:
            _end_as_interpreter()


def _end_as_interpreter() -> None:
    """Do what the interpreter does at the end of a program.

    It waits for threads that are not daemons, and runs the functions that were registered for it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


if __name__ == "__main__":
    sys.exit(main())
