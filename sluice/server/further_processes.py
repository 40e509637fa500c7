"""Further processes of a state server, so that it uses more than one core.

Python executes one thread of a process at a time. The first process of a state server binds the
address. The further processes accept connections at the same sockets, and have their own
connections to the ledger and to the shards.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Thread

from sluice.errors import StateError

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""How long a process may take until it accepts connections."""
RESTART_SECONDS = 1.0
"""How long after a process has ended a new process replaces it."""
STOP_SECONDS = 12.0
"""How long a process may take to end. This is longer than it waits for its last requests."""

_SPAWN = multiprocessing.get_context("spawn")
"""New processes are not forked, because libraries may have started threads in this process."""

Serve = Callable[[int, Sequence[socket.socket], Callable[[], None]], None]
"""Serves in a further process until it receives a signal to stop. Takes the process's number, the
sockets to listen on, and the function to call when the process accepts connections."""


class FurtherProcesses:
    """The further processes, which end with this process.

    If a further process ends earlier, for example because the system kills it, a new process
    replaces it. `ended` is called when all processes have ended. If this process is killed, each
    further process calls `ended`.
    """

    def __init__(self, numbers: Sequence[int], serve: Serve, ended: Callable[[], None]) -> None:
        self._numbers = numbers
        self._serve = serve
        self._ended = ended
        self._sockets: Sequence[socket.socket] = ()
        self._processes: dict[int, SpawnProcess] = {}
        self._restarts: dict[int, asyncio.TimerHandle] = {}

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start the processes. Return when all processes accept connections at `sockets`.

        Raise StateError if a process does not start.
        """
        self._sockets = sockets
        starting = [self._start(number) for number in self._numbers]
        for started in starting:
            if not await asyncio.to_thread(_has_started, started):
                raise StateError(
                    "A process of the state server has not started.",
                    next_step="Look for its error in the server's log.",
                )

    def _start(self, number: int) -> Connection:
        """Start a process.

        Return the pipe through which the process reports that it accepts connections.
        """
        started, report = _SPAWN.Pipe(duplex=False)
        process = _SPAWN.Process(
            target=_run, args=(self._serve, number, self._sockets, report, self._ended)
        )
        with _blocked(signal.SIGINT):
            process.start()
        report.close()
        self._processes[number] = process
        asyncio.get_running_loop().add_reader(process.sentinel, self._replace, number)
        return started

    def _replace(self, number: int) -> None:
        process = self._processes.pop(number)
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()
        self._start_later(number, process.exitcode)

    def _start_later(self, number: int, exit_code: int | None) -> None:
        # If the process ended because all processes got a signal to stop, this process cancels the
        # start.
        loop = asyncio.get_running_loop()
        self._restarts[number] = loop.call_later(
            RESTART_SECONDS, self._start_again, number, exit_code
        )

    def _start_again(self, number: int, exit_code: int | None) -> None:
        log.error(
            "Process %d of the state server ended (exit code %s). Another one starts.",
            number,
            exit_code,
        )
        try:
            self._start(number).close()
        except OSError:
            log.exception("Process %d of the state server could not be started", number)
            self._start_later(number, exit_code)

    def begin_stop(self) -> None:
        """Stop the processes from accepting connections; each ends after its last answer."""
        loop = asyncio.get_running_loop()
        for restart in self._restarts.values():
            restart.cancel()
        for process in self._processes.values():
            loop.remove_reader(process.sentinel)
            process.terminate()

    def end(self, seconds: float = STOP_SECONDS) -> None:
        """Wait until the processes have ended, and kill those that take longer than `seconds`."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(seconds)
            process.kill()
            process.join()
        self._ended()


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal in this process, and in the processes that the block starts.

    Ctrl-C in a terminal sends its signal to all processes. Only the first process may act on it; it
    then ends the others.
    """
    # Start the standard library's resource tracker now. Otherwise, our first process would start
    # it, which would unblock the signals.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_started(started: Connection) -> bool:
    """Wait for a process to report its start. Return False if it ends or takes too long."""
    with started, suppress(EOFError):
        if started.poll(START_SECONDS):
            started.recv()
            return True
    return False


def _run(
    serve: Serve,
    number: int,
    sockets: Sequence[socket.socket],
    report: Connection,
    ended: Callable[[], None],
) -> None:
    """Serve in a further process. This is the process's main function."""

    def started() -> None:
        # If this process has replaced another process, nobody reads the report, so it may fail.
        with report, suppress(OSError):
            report.send(None)

    Thread(target=_end_with_first_process, args=(ended,), daemon=True).start()
    serve(number, sockets, started)


def _end_with_first_process(ended: Callable[[], None]) -> None:
    """End this process at once if the first process has been killed.

    Otherwise, a new server could not use the address.
    """
    first = multiprocessing.parent_process()
    assert first is not None
    first.join()
    ended()
    os._exit(1)
