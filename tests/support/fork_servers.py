"""A fork server without a JVM, whose runs are Python code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.warm.client import WarmRun
from sluice.warm.messages import Request, send_request

PROGRAM = """
import json, os, socket, sys, threading, time
from pathlib import Path
from sluice.warm.fork_server import ForkServer, Limits
def run(environment, arguments, number):
    os.environ.clear()
    os.environ.update(environment)
    names = {"number": number, "os": os, "sys": sys, "threading": threading, "time": time}
    exec(environment.get("CODE", arguments[0]), names)
    sys.stdout.flush()
    return 0
jvm = socket.socket(fileno=int(sys.argv[3]))
limits = Limits(**json.loads(sys.argv[5]))
server = ForkServer(Path(sys.argv[1]), sys.argv[2], jvm, int(sys.argv[4]), run, limits)
print("ready", flush=True)
sys.exit(server.serve())
"""


@dataclass
class Server:
    process: subprocess.Popen[str]
    path: Path
    jvm: socket.socket
    """The end of the process that keeps the JVM."""
    command: socket.socket
    """Closed when the command that has started the driver ends."""

    @contextmanager
    def run(
        self,
        code: str,
        output: Path,
        *,
        key: str = "key",
        variables: Mapping[str, str] | None = None,
    ) -> Iterator[WarmRun]:
        with socket.socket(socket.AF_UNIX) as connection, output.open("wb") as file:
            connection.connect(str(self.path))
            request = Request(key, [code], {**(variables or {})}, str(output.parent), 0o027)
            send_request(connection, request, file.fileno(), file.fileno())
            yield WarmRun(connection, output.with_name("finished"))

    def status_of(self, code: str, output: Path) -> int:
        with self.run(code, output) as run:
            assert run.has_started()
            return run.wait()


@contextmanager
def fork_server(path: Path, key: str = "key", **limits: float) -> Iterator[Server]:
    """Start a fork server that listens at a path, in a process of its own."""
    jvm, of_server = socket.socketpair()
    command, command_ended = socket.socketpair()
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", PROGRAM),
            *(str(path), key, str(of_server.fileno()), str(command_ended.fileno())),
            json.dumps(limits),
        ],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[of_server.fileno(), command_ended.fileno()],
    )
    of_server.close()
    command_ended.close()
    with process, jvm, command:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Server(process, path, jvm, command)
        finally:
            process.kill()
