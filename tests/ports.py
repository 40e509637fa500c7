"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import os
import random
import socket

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Below the ports that the system gives to connections, and for each of pytest-xdist's workers others: a server may
# take seconds until it listens, or come back after a while, and finds its port free still.
_FIRST, _EACH = 20_000, 1_000
_CANDIDATES = itertools.cycle(random.sample(range(_FIRST + _WORKER * _EACH, _FIRST + (_WORKER + 1) * _EACH), _EACH))


def free_port() -> int:
    """A port of loopback that nothing listens on, and that nobody else will be given soon."""
    for port in itertools.islice(_CANDIDATES, _EACH):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise RuntimeError(f"None of the {_EACH} ports from {_FIRST + _WORKER * _EACH} on is free.")
