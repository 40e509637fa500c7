"""The program that Spark starts in place of Python, where the driver has prepared a daemon.

It only passes on to the prepared daemon what Spark has given this program, and waits until the
daemon ends. The driver writes this file, as a program, beside the daemon's socket. The program
imports nothing but the standard library, and starts without `site`. It therefore takes less than
half of the 50 ms of CPU time that `-m sluice.engine.worker_daemon` takes.
"""

from __future__ import annotations

import json
import os
import socket
import sys

DAEMON_MODULE = "sluice.engine.worker_daemon"
PART = 65_536
_OPTION = "-S"
_LONGEST_LINE = 120
"""The longest first line of a program that all systems accept, in bytes."""


def hand_over(path: str | None, arguments: list[str]) -> bool:
    """Let the daemon that is prepared at `path` take over, and wait until the daemon ends.

    `arguments` are the arguments that Spark has given this program. Return False if no daemon is
    prepared.
    """
    # The setting `spark.pyspark.python` may name another Python for tasks than the driver's.
    if not path or os.environ.get("PYSPARK_DRIVER_PYTHON") != sys.executable:
        return False
    with socket.socket(socket.AF_UNIX) as prepared:
        try:
            prepared.connect(path)
        except OSError:
            # No daemon has been prepared, or it has been used already: Spark starts another
            # daemon for another environment, and after a crash of the first daemon.
            return False
        folder = os.getcwd()  # noqa: PTH109 (the import of pathlib takes 5 ms)
        message = json.dumps([[DAEMON_MODULE, *arguments], folder, {**os.environ}]).encode()
        sent = socket.send_fds(prepared, [message[:PART]], [0, 1])
        prepared.sendall(message[sent:])
        prepared.shutdown(socket.SHUT_WR)
        # The JVM closes the pipes of a process that has ended, so this process must not end before
        # the daemon.
        prepared.recv(1)
    return True


def write_program(folder: str) -> str:
    """Write this file to a folder, as a program for this Python, unless it is there already.

    Return the program's path; empty if the system would not start it, for example because it starts
    no program from this folder.
    """
    from pathlib import Path

    first_line = f"#!{sys.executable} {_OPTION}\n".encode()
    program = Path(folder, "python")
    if len(first_line) > _LONGEST_LINE or len(sys.executable.split()) != 1:
        return ""
    if not program.exists():
        # The system starts no program that a process has open for writing. So another process
        # must not find the program before it is complete.
        new = program.with_name(f"python-{os.getpid()}")
        new.write_bytes(first_line + Path(__file__).read_bytes())
        new.chmod(0o700)
        new.replace(program)
    return str(program) if os.access(program, os.X_OK) else ""


def main() -> None:
    """Hand over to the prepared daemon, or become the Python that Spark has asked for."""
    is_daemon = sys.argv[1:3] == ["-m", DAEMON_MODULE]
    if is_daemon and hand_over(os.environ.get("SLUICE_PREPARED_DAEMON"), sys.argv[3:]):
        return
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
