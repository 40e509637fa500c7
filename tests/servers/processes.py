"""State servers in separate processes, as `sluice serve` starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.hosts import TOKEN
from tests.support.ports import free_port

SLUICE = str(Path(sys.executable).parent / "sluice")


def environment(home: Path, folder: Path, ledger: str) -> dict[str, str]:
    """The environment of a process on a host: its own folder of shards, the ledger, and the token."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return others | {
        "SLUICE_HOME": str(home),
        "SLUICE_LEDGER": ledger,
        "SLUICE_SHARDS": f"sqlite:///{folder}",
        "SLUICE_SERVER_TOKEN": TOKEN,
    }


class ServerProcess:
    """`sluice serve` on a loopback port. `before`: prefix of the command."""

    def __init__(
        self,
        variables: Mapping[str, str],
        *options: str,
        port: int | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.variables = dict(variables)
        self.command = [*before, SLUICE, "serve", "--port", str(self.port), *options]

    def start(self) -> ServerProcess:
        """Start the process. `wait` waits until it responds."""
        self.process = subprocess.Popen(
            self.command,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def wait(self, seconds: float = 30) -> ServerProcess:
        """Wait until the server listens. Raises AssertionError with its output otherwise."""
        deadline = time.monotonic() + seconds
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "State server listens on" in line, line + self.process.stdout.read()
        assert time.monotonic() < deadline
        return self

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the process with a signal. Returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def __enter__(self) -> ServerProcess:
        return self.start().wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
