"""Gives a run to a warm driver, if there is one for it (`warm/identity.py` says which).

A run that no warm driver takes starts a new driver. If a warm driver is lost, its run starts again
in a new driver, and continues after the batches that it has published.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sluice.errors import SettingsError
from sluice.settings import OFF, START_WARM, USE_WARM, Settings
from sluice.spark_submit import (
    FINISHED,
    UNFINISHED,
    environment,
    interruptible,
    is_local,
    temporary_folder,
)
from sluice.warm.identity import driver_key, drivers_folder, socket_path
from sluice.warm.messages import PART, Request, decode_reply, send_request

_UNTIL_STARTED_S = 10.0
"""How long a run waits until a warm driver starts it, before the run starts a driver of its own."""
Connection: TypeAlias = tuple[str, socket.socket]
"""A driver's key, and a connection to the driver."""
LOST = (
    "The warm driver has ended during the run. The run starts again in its own driver; "
    "published batches are kept."
)

NO_DRIVER = "No warm driver with these settings and libraries has room for another run."


class DriverLost(Exception):
    """The warm driver, or its JVM, has ended before the run."""


@dataclass
class WarmRun:
    """A run in a warm driver. It is killed when its connection is closed."""

    connection: socket.socket
    finished: Path
    """The file that the run makes after it has done everything."""
    reader: int = -1
    """The end of a pipe at which the run's output arrives; -1 if the output goes elsewhere."""
    _received: bytearray = field(default_factory=bytearray)

    @property
    def is_finished(self) -> bool:
        """Whether the run has done everything. Code that ends its process also gives status 0."""
        return self.finished.exists()

    def wait(self) -> int:
        """Wait until the run has ended, and return its status. Raise DriverLost."""
        status = self._next_reply(None)
        if status is None:
            raise DriverLost
        return status

    def end(self) -> None:
        """Let the driver kill the run. Another thread or a signal's handler may call this."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def lines(self) -> Iterator[str]:
        """Yield the lines that arrive at `reader` until the run has ended.

        Do not wait for processes that the run has left behind.
        """
        rest = b""
        while True:
            ready, _, _ = select.select([self.reader, self.connection.fileno()], [], [])
            # When the run has ended, all that it has written is in the pipe.
            if self.reader not in ready:
                break
            part = os.read(self.reader, PART)
            if not part:
                break
            *complete, rest = (rest + part).split(b"\n")
            for line in complete:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    def has_started(self) -> bool:
        """Wait until the driver has started the run. Return False if it does not take the run."""
        try:
            return self._next_line(_UNTIL_STARTED_S) is not None
        except TimeoutError:
            return False

    def _next_reply(self, patience_s: float | None) -> int | None:
        line = self._next_line(patience_s)
        return None if line is None else decode_reply(line).status

    def _next_line(self, patience_s: float | None) -> bytes | None:
        """Return the next line; None if the connection has ended, or the request is refused."""
        self.connection.settimeout(patience_s)
        while b"\n" not in self._received:
            try:
                part = self.connection.recv(PART)
            except ConnectionError:
                part = b""
            if not part:
                return None
            self._received += part
        line, _, rest = self._received.partition(b"\n")
        self._received = bytearray(rest)
        return None if decode_reply(bytes(line)).refused else bytes(line)


def run_warm(
    settings: Settings,
    kafka: Mapping[str, str],
    master: str,
    arguments: Sequence[str],
    *,
    delta: bool = False,
    variables: Mapping[str, str] | None = None,
    connection: Connection | None = None,
) -> int | None:
    """Run a pipeline on a warm driver, with this process's output. Return the run's status.

    Return None if there is no warm driver for the run, or if the driver is lost. For `variables`
    and `connection`, see `warm_run`.

    If this process gets a signal to end, kill the run and raise Interrupted.
    """
    with ExitStack() as stack:
        begin = stack.enter_context(interruptible())
        # The run's child processes must not ignore SIGINT, so call `begin` before they exist. From
        # now
        # on, a signal ends the run.
        begin()
        run = stack.enter_context(
            warm_run(
                settings,
                kafka,
                master,
                arguments,
                delta=delta,
                variables=variables,
                connection=connection,
            )
        )
        if run is None:
            if settings.warm != OFF:
                sys.stderr.write(f"{NO_DRIVER}\n")
            return None
        try:
            status = run.wait()
        except DriverLost:
            sys.stderr.write(f"{LOST}\n")
            return None
        if status == 0 and not run.is_finished:
            sys.stderr.write(f"{UNFINISHED}\n")
            return 1
        return status


@contextmanager
def warm_run(
    settings: Settings,
    kafka: Mapping[str, str],
    master: str,
    arguments: Sequence[str],
    *,
    delta: bool = False,
    variables: Mapping[str, str] | None = None,
    is_piped: bool = False,
    connection: Connection | None = None,
) -> Iterator[WarmRun | None]:
    """Yield the run of a pipeline that a warm driver has started; None if no driver takes it.

    `variables` are added to the run's environment. The run's output goes to this process's output
    or, if `is_piped`, to `WarmRun.lines`. If the block ends before the run, the run is killed.
    `connection` is a result of `connect`. If it is None, this function connects.
    """
    if connection is None:
        connection = connect(settings, master, delta=delta)
    if connection is None:
        yield None
        return
    key, connected = connection
    with ExitStack() as stack:
        stack.enter_context(connected)
        folder = stack.enter_context(temporary_folder())
        reader, outputs = -1, (1, 2)
        if is_piped:
            reader, writer = os.pipe()
            stack.callback(os.close, reader)
            outputs = (writer, writer)
        run = WarmRun(connected, folder / "finished", reader)
        try:
            request = Request(
                key=key,
                arguments=[*arguments],
                environment={
                    **os.environ,
                    **environment(settings, kafka),
                    **(variables or {}),
                    FINISHED: str(run.finished),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONHASHSEED": "0",
                    "PYTHONUNBUFFERED": "YES",
                },
                folder=str(Path.cwd()),
                umask=_umask(),
            )
            send_request(connected, request, *outputs)
            has_started = run.has_started()
        except (OSError, UnicodeEncodeError):
            # JSON cannot hold variables that are not valid text.
            has_started = False
        finally:
            if is_piped:
                os.close(outputs[0])
        yield run if has_started else None


def connect(settings: Settings, master: str, *, delta: bool) -> Connection | None:
    """Return a connection to the driver for a run; None if there is none.

    If there is no driver and the settings say so, a driver is started for later runs.
    """
    if settings.warm not in (USE_WARM, START_WARM) or not is_local(master):
        return None
    key = driver_key(settings, master, delta=delta)
    try:
        path = socket_path(settings, key)
    except SettingsError:
        return None
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_UNTIL_STARTED_S)
    try:
        connection.connect(str(path))
        return key, connection
    except OSError:
        connection.close()
    if settings.warm == START_WARM:
        _start_driver(settings, master, key, delta=delta)
    return None


def _start_driver(settings: Settings, master: str, key: str, *, delta: bool) -> None:
    """Start a warm driver that outlives this process, unless one is already starting."""
    with suppress(OSError):
        with locked(settings, key) as is_free:
            if not is_free:
                return
        command = [sys.executable, "-m", "sluice", "warm", "--master", master]
        if delta:
            command.append("--delta")
        log = drivers_folder(settings) / f"{key}.log"
        _spawn(command, os.environ | environment(settings, {}), log)


def _spawn(command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
    """Start a program that outlives this process, with its output in a file."""
    # Another run may be starting the same driver. One of the two drivers then ends at once.
    with log.open("a") as output:
        subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def locked(settings: Settings, key: str) -> Iterator[bool]:
    """Hold the lock of a driver's key in the block. Yield whether it was free.

    A driver holds the lock from its start to its end.
    """
    folder = drivers_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with (folder / f"{key}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _umask() -> int:
    # The umask can only be read by setting it.
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
