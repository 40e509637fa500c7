"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import os
import random
import socket

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Below the range of ephemeral ports, and a separate range for each process of pytest-xdist, because a server may start
# to listen seconds later, or restart after a while, and its port must still be free.
_FIRST, _EACH = 20_000, 1_000
_CANDIDATES = itertools.cycle(random.sample(range(_FIRST + _WORKER * _EACH, _FIRST + (_WORKER + 1) * _EACH), _EACH))


def free_port() -> int:
    """A loopback port on which no server listens, and which no other test gets soon."""
    for port in itertools.islice(_CANDIDATES, _EACH):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise RuntimeError(f"None of the {_EACH} ports from {_FIRST + _WORKER * _EACH} on is free.")


def listens(port: int) -> bool:
    """Whether a process accepts connections at a port of this host."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
