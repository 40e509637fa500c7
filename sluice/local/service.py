"""A process of the platform in its own session, which includes all processes that it starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.errors import EngineError
from sluice.support import processes

_LOG_LINES = 25


@dataclass(frozen=True)
class Service:
    """A running program.

    The program's session contains all processes that it has started, even if their parents have
    ended.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> Service:
        """Start `command` with its output in the file `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(name, process, log)

    def check(self) -> None:
        """Raise EngineError with the end of the log if the program has ended."""
        status = self.process.poll()
        if status is not None:
            raise EngineError(
                f"{self.name} ended with status {status}. The end of its log:\n{self.tail()}",
                next_step=f"The whole log is {self.log}.",
            )

    def finish(self) -> None:
        """Wait for the program to end. Raises EngineError if its status is not 0."""
        if self.process.wait():
            self.check()

    def tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def stop(services: Iterable[Service], patience_s: float = 8.0) -> None:
    """Stop the services and all their processes with SIGTERM, and SIGKILL after `patience_s`."""
    sessions = {service.process.pid for service in services}
    end_sessions(sessions, patience_s)
    for service in services:
        service.process.wait()


def end_sessions(sessions: set[int], patience_s: float) -> None:
    """End all processes of these sessions."""
    processes.end(lambda: members(sessions), patience_s)


def members(sessions: set[int]) -> list[psutil.Process]:
    """Return the processes of these sessions that have not ended."""
    of_sessions = (
        process for process in psutil.process_iter(["pid"]) if _session(process) in sessions
    )
    return [process for process in of_sessions if not processes.has_ended(process)]


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        # The process has ended, or belongs to another user.
        return None
