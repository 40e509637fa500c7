"""Ports for the servers of tests."""

from __future__ import annotations

import atexit
import itertools
import os
import random
import socket
from contextlib import suppress
from pathlib import Path

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Below the range of ephemeral ports, and a separate range for each process of pytest-xdist, because
# a server may start to listen seconds later, or restart after a while, and its port must still be
# free.
_FIRST, _EACH = 20_000, 1_000
_CANDIDATES = itertools.cycle(
    random.sample(range(_FIRST + _WORKER * _EACH, _FIRST + (_WORKER + 1) * _EACH), _EACH)
)
_TAKEN = Path(f"/tmp/sluice-tests-ports-{os.getuid()}")
"""A file for each port that a process of any run of pytest on this machine has taken; it contains the process id."""


def free_port() -> int:
    """A loopback port on which no server listens, and which no other test gets soon."""
    for port in itertools.islice(_CANDIDATES, _EACH):
        if not _take(_TAKEN / str(port)):
            continue
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise RuntimeError(f"None of the {_EACH} ports from {_FIRST + _WORKER * _EACH} on is free.")


def _take(file: Path) -> bool:
    """Keep a port until this process ends. Returns whether it is this process's."""
    _TAKEN.mkdir(exist_ok=True)
    try:
        with file.open("x") as taken:
            taken.write(str(os.getpid()))
    except FileExistsError:
        with suppress(FileNotFoundError, ValueError):
            owner = int(file.read_text())
            if owner != os.getpid() and Path(f"/proc/{owner}").exists():
                return False
            file.write_text(str(os.getpid()))
            return True
        return False  # another process is just taking or leaving it
    atexit.register(file.unlink, missing_ok=True)
    return True


def listens(port: int) -> bool:
    """Whether a process accepts connections at a port of this host."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
