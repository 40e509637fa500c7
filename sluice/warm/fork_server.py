"""The fork server: the process of a warm driver from which each run's process is forked.

It has imported everything that a run needs. It has a single thread, so no fork copies a lock that
another thread holds. It makes no call that can block: it never calls the JVM, and it reads and
writes its connections only when they are ready. A run's process has the client's environment,
folder and output. It leads its own session, so that all processes that it has started can be ended
with it. Therefore, what a run does to its process, such as leaking threads or calling `os._exit`,
affects neither this process nor other runs.

A run ends in one of these ways:

- Its process ends. The client gets its status.
- The client ends the connection. All processes of the run are killed.
- The JVM ends. All processes of all runs are killed, and the clients find out that the driver is
  lost.

If the command that has started the driver ends, the driver takes no more runs, and ends after the
runs that it has taken.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

import structlog

from sluice.warm.messages import Incoming, Reply, Request, encode_reply
from sluice.warm.processes_of_run import be_killed_first, end_with_parent, kill_session

log = structlog.get_logger()

RunFunction: TypeAlias = Callable[[dict[str, str], list[str], int], int]
"""Does a run in its own process, and returns the exit status. Takes the environment, the arguments
and the number of the run."""
_CREDENTIALS = struct.Struct("3i")
_UNTIL_JVM_IS_MISSED_S = 0.3
"""How long to wait, after a run has failed, for the message that the JVM has ended, too."""
_LONGEST_WAIT_S = 86_400.0
"""The longest timeout of one system call: system calls reject timeouts of many days."""


@dataclass(frozen=True)
class Limits:
    """The limits after which a driver takes no more runs."""

    at_once: int = 4
    """The maximum number of runs that are processed at the same time. The others wait."""
    idle_s: float = 1_800.0
    """A driver ends after this many seconds without a run."""
    runs: int = 500
    """A driver ends after this many runs."""
    age_s: float = 12 * 3_600.0
    """After this many seconds, a driver takes no more runs, and ends after the runs that it has
    taken."""


@dataclass(eq=False)
class _Client:
    """A client's connection, and the run that the client has asked for."""

    connection: socket.socket
    incoming: Incoming = field(default_factory=Incoming)
    request: Request | None = None
    """None until the request has been received."""
    pid: int = 0
    """The process of the run; 0 before its start."""
    descriptor: int = -1
    """The file descriptor that is readable when the process has ended."""
    is_gone: bool = False

    def answer(self, reply: Reply) -> None:
        """Send a reply. If the client does not take these few bytes, it is gone."""
        with suppress(OSError):
            self.connection.send(encode_reply(reply))

    def close(self) -> None:
        self.connection.close()
        for descriptor in self.incoming.descriptors:
            os.close(descriptor)
        self.incoming.descriptors.clear()


class ForkServer:
    """Takes requests at a listening socket until `limits` are reached or the JVM has ended.

    `jvm` is a connection to the process that keeps the JVM, and ends when the JVM ends.
    `command_ended` is a descriptor that is readable when the command that has started the driver
    has ended.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        jvm: socket.socket,
        command_ended: int,
        run: RunFunction,
        limits: Limits | None = None,
    ) -> None:
        self._path, self._key, self._jvm, self._run = path, key, jvm, run
        self._command_ended = command_ended
        self._limits = limits or Limits()
        self._waiting: deque[_Client] = deque()
        self._running: dict[int, _Client] = {}
        self._clients: set[_Client] = set()
        self._started = 0
        self._begun = self._last_used = time.monotonic()
        self._is_lost = False
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = _listen(path)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(jvm, selectors.EVENT_READ, self._lose_jvm)
        self._selector.register(command_ended, selectors.EVENT_READ, self._lose_command)

    def serve(self) -> bool:
        """Serve until the driver must end. Return whether it ends because it has lost the JVM."""
        try:
            while not self._is_lost and not self._is_done():
                for key, _ in self._selector.select(self._patience()):
                    key.data()
                self._start_waiting()
        finally:
            self._stop_listening()
            for client in [*self._clients]:
                self._drop(client)
        return self._is_lost

    def _is_done(self) -> bool:
        """Return whether the driver may end. It stops listening before its last runs have ended."""
        if self._started >= self._limits.runs or self._until_limit_s() <= 0:
            self._stop_listening()
        return self._listener is None and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return bool(self._running or self._waiting)

    def _until_limit_s(self) -> float:
        """Return the seconds until the driver stops listening if nothing happens."""
        until = self._begun + self._limits.age_s
        if not self._is_busy:
            until = min(until, self._last_used + self._limits.idle_s)
        return until - time.monotonic()

    def _patience(self) -> float | None:
        """Return how long to wait for an event, in seconds; None for as long as it takes."""
        if self._listener is None:
            return None
        return min(max(0.0, self._until_limit_s()), _LONGEST_WAIT_S)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._close_listener()

    def _close_listener(self) -> None:
        assert self._listener is not None
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = None

    def _lose_command(self) -> None:
        """Take no more runs, because the command can no longer end this driver."""
        self._selector.unregister(self._command_ended)
        # The command's lock is free, so the path may already be that of the next driver.
        if self._listener is not None:
            self._close_listener()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        client = _Client(connection)
        if peer_user(connection) != os.getuid():
            client.close()
            return
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: _Client) -> None:
        """Receive a part of a request, or find out that the client has gone."""
        if client not in self._clients:
            # Another event in the same round has already ended the run.
            return
        if client.request is not None:
            self._lose_client(client)
            return
        try:
            client.request = client.incoming.receive(client.connection)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:
            # msgspec's errors are ValueErrors, too.
            client.answer(Reply(refused=str(error)))
            self._drop(client)
            return
        if client.request is None:
            return
        if client.request.key != self._key:
            client.answer(Reply(refused="The driver has another version or other settings."))
            self._drop(client)
            return
        self._waiting.append(client)

    def _lose_client(self, client: _Client) -> None:
        """Kill the run of a client that has ended the connection, such as a cancelled task."""
        if not client.pid:
            self._waiting.remove(client)
            self._drop(client)
            return
        client.is_gone = True
        self._selector.unregister(client.connection)
        # The end of the process is a separate event, which calls `_end`.
        kill_session(client.pid)

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._limits.at_once:
            client = self._waiting.popleft()
            assert client.request is not None
            self._started += 1
            client.answer(Reply())
            try:
                client.pid = self._fork(client, client.request)
            except OSError as error:
                # The system has no memory or process left.
                client.answer(Reply(refused=f"No process could be started: {error}"))
                self._drop(client)
                continue
            client.descriptor = os.pidfd_open(client.pid)
            self._running[client.pid] = client
            self._selector.register(client.descriptor, selectors.EVENT_READ, self._end_of(client))

    def _end_of(self, client: _Client) -> Callable[[], None]:
        return lambda: self._end(client)

    def _end(self, client: _Client) -> None:
        """Kill the processes that a run has left, and report the run's end."""
        status = self._reap(client)
        self._last_used = time.monotonic()
        if status and not client.is_gone and self._has_lost_jvm():
            self._lose_jvm()
        else:
            client.answer(Reply(status))
        self._drop(client)

    def _reap(self, client: _Client) -> int:
        """End all processes of a client's run, and return the status of the run's first process."""
        # Until the status has been read, the system does not use the session's number again.
        kill_session(client.pid)
        _, waited = os.waitpid(client.pid, 0)
        del self._running[client.pid]
        self._selector.unregister(client.descriptor)
        os.close(client.descriptor)
        client.pid = 0
        return os.waitstatus_to_exitcode(waited)

    def _has_lost_jvm(self) -> bool:
        readable, _, _ = select.select([self._jvm], [], [], _UNTIL_JVM_IS_MISSED_S)
        return bool(readable)

    def _lose_jvm(self) -> None:
        self._is_lost = True

    def _drop(self, client: _Client) -> None:
        """Forget a client, and kill its run if it is still running."""
        if client.pid:
            self._reap(client)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        client.close()
        self._clients.discard(client)

    def _fork(self, client: _Client, request: Request) -> int:
        """Fork the process of a run, and return its process id."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent, number = os.getpid(), self._started
        pid = os.fork()
        if not pid:
            self._become_run(client, request, number, parent)
        return pid

    def _become_run(self, client: _Client, request: Request, number: int, parent: int) -> NoReturn:
        """Do a run in this process, which has just been forked."""
        status = 1
        try:
            os.setsid()
            end_with_parent(parent)
            be_killed_first()
            self._take_output(client)
            os.chdir(request.folder)
            os.umask(request.umask)
            sys.argv[1:] = request.arguments
            status = self._run(request.environment, request.arguments, number)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else bool(ended.code)
        except BaseException:
            # Print the traceback, as the interpreter does for an exception that ends a program.
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _take_output(self, client: _Client) -> None:
        """Take the client's output, and close everything of the fork server.

        The objects are closed, rather than only their descriptors. Otherwise, an object that is
        deleted later would close its descriptor number. By then, another object may have this
        number.
        """
        stdout, stderr = client.incoming.descriptors
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((nothing, stdout, stderr)):
            os.dup2(descriptor, number)
        os.close(nothing)
        for other in self._clients:
            other.close()
            if other.descriptor >= 0 and other.pid:
                os.close(other.descriptor)
        if self._listener is not None:
            self._listener.close()
        self._jvm.close()
        os.close(self._command_ended)
        self._selector.close()


def _listen(path: Path) -> socket.socket:
    """Listen at a path that only this user can reach."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    # The command holds the lock of the driver's key, so the socket belongs to no living driver.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(128)
    listener.setblocking(False)
    return listener


def peer_user(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return int(user)
